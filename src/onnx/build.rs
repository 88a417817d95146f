//! From the messages of a file to a graph: names become numbers, operators functions.

use std::collections::HashMap;
use std::rc::Rc;

use prost::Message;

use super::attributes::{bound, constant};
use super::call::of_node;
use super::element_type::ElementType;
use super::info::declared;
use super::node::{Body, Graph, Node, Source};
use super::ops;
use super::proto::{FunctionProto, GraphProto, NodeProto, OpsetProto, TensorProto};
use super::weights::{ExternalData, Weight};
use super::{detail, fault};
use crate::error::Result;

/// The most nodes of a model, functions counted at each of their calls: a file of functions that call each other twice grows
/// without limit.
const MOST_NODES: usize = 1 << 20;
/// The most bytes of constants that the calls of functions copy.
const MOST_COPIED: usize = 1 << 30;
/// The deepest nesting of graphs and functions.
const DEEPEST: usize = 32;
/// The oldest and the newest version of ONNX's operator set that operators are written for.
const OPSETS: (i64, i64) = (1, 28);

/// The values of a graph that is read, by name.
#[derive(Default)]
struct Scope {
    names: HashMap<String, Source>,
    slots: usize,
    captures: Vec<(Source, usize)>,
    /// What defines each name of this graph, for errors.
    defined: HashMap<String, String>,
    /// Whether names of the graph around it are not visible: in functions.
    closed: bool,
}

impl Scope {
    /// Notes what defines a name.
    ///
    /// # Errors
    ///
    /// If something else does too: ONNX has each name once.
    fn define(&mut self, name: &str, by: impl FnOnce() -> String) -> Result<()> {
        if name.is_empty() {
            return Ok(());
        }
        let by = by();
        match self.defined.get(name) {
            Some(before) => Err(fault(format!("'{name}' is defined twice: by {before} and by {by}"))),
            None => {
                self.defined.insert(name.to_owned(), by);
                Ok(())
            }
        }
    }

    fn slot(&mut self, name: &str) -> usize {
        self.slots += 1;
        self.names.insert(name.to_owned(), Source::Slot(self.slots - 1));
        self.slots - 1
    }
}

/// Reads the graphs of a model.
pub(super) struct Builder<'a> {
    opsets: Vec<HashMap<&'a str, i64>>,
    functions: Rc<HashMap<(&'a str, &'a str), &'a FunctionProto>>,
    external: ExternalData,
    pub weights: Vec<Weight>,
    scopes: Vec<Scope>,
    nodes: usize,
    /// Bytes of constants of functions, at each of their calls.
    copied: usize,
    /// Operators without a function, each with the names of its nodes.
    unknown: Vec<(String, Vec<String>)>,
}

/// What to do about operators that [`is_for_runtime`] knows.
const RUNTIME_ADVICE: &str = "; ONNX Runtime's quantiser or optimiser wrote some of them in place of ONNX's own: quantise in the QDQ \
    form (quant_format=QuantFormat.QDQ), and save optimised models at the level ORT_ENABLE_BASIC";

/// Whether an operator with its domain is one that ONNX Runtime writes for its own use: for quantised tensors, or
/// for another order of the channels.
fn is_for_runtime(operator: &str) -> bool {
    if operator.starts_with("com.microsoft.nchwc.") || operator.starts_with("com.ms.internal.nhwc.") {
        return true;
    }
    let Some(name) = operator.strip_prefix("com.microsoft.") else { return false };
    name.starts_with('Q') || name.starts_with("Nhwc") || name.contains("Quantize") || name.contains("Integer")
}

fn domain(name: &str) -> &str {
    if name == "ai.onnx" { "" } else { name }
}

fn versions(opsets: &[OpsetProto]) -> HashMap<&str, i64> {
    opsets.iter().map(|set| (domain(&set.domain), set.version)).collect()
}

impl<'a> Builder<'a> {
    pub fn new(
        opsets: &'a [OpsetProto],
        functions: &'a [FunctionProto],
        external: ExternalData,
    ) -> Result<Builder<'a>> {
        let functions = Rc::new(functions.iter().map(|f| ((domain(&f.domain), f.name.as_str()), f)).collect());
        let opsets = versions(opsets);
        if let Some(&version) = opsets.get("").filter(|&&version| version < OPSETS.0 || version > OPSETS.1) {
            let (oldest, newest) = OPSETS;
            return Err(fault(format!(
                "the model is of operator set {version}, and {oldest} to {newest} are supported: convert it with onnx.version_converter"
            )));
        }
        let opsets = vec![opsets];
        Ok(Builder {
            opsets,
            functions,
            external,
            weights: Vec::new(),
            scopes: Vec::new(),
            nodes: 0,
            copied: 0,
            unknown: Vec::new(),
        })
    }

    /// Reads the graph of a model.
    ///
    /// # Errors
    ///
    /// For operators that are not supported, one error that lists all of them.
    pub fn model(&mut self, proto: &'a GraphProto) -> Result<Graph> {
        let mut graph = self.graph(proto, Scope::default())?;
        if self.unknown.is_empty() {
            graph.finish();
            return Ok(graph);
        }
        let list = |(operator, names): &(String, Vec<String>)| {
            let shown: Vec<&str> = names.iter().take(3).map(String::as_str).collect();
            let more = if names.len() > 3 { format!(" and {} more", names.len() - 3) } else { String::new() };
            format!("{operator} ({}{more})", shown.join(", "))
        };
        let listed: Vec<String> = self.unknown.iter().map(list).collect();
        let advice =
            if self.unknown.iter().any(|(operator, _)| is_for_runtime(operator)) { RUNTIME_ADVICE } else { "" };
        Err(fault(format!("operators that are not supported: {}{advice}", listed.join(", "))))
    }

    fn graph(&mut self, proto: &'a GraphProto, mut scope: Scope) -> Result<Graph> {
        if !proto.sparse_initializer.is_empty() {
            return Err(fault("sparse initializers are not supported"));
        }
        self.count(proto.initializer.len())?;
        for initializer in &proto.initializer {
            scope.define(&initializer.name, || "an initializer".into())?;
            let weight = self.weight(&initializer.name, initializer)?;
            scope.names.insert(initializer.name.clone(), weight);
        }
        // Up to version 3 of the format, initializers are listed as inputs too, which may replace them. They are constants here.
        let mut inputs = Vec::new();
        for input in proto.input.iter().filter(|input| !scope.names.contains_key(&input.name)).collect::<Vec<_>>() {
            scope.define(&input.name, || "an input of the graph".into())?;
            inputs.push(scope.slot(&input.name));
        }
        let outputs: Vec<&str> = proto.output.iter().map(|output| output.name.as_str()).collect();
        let mut graph = self.body(&proto.node, inputs, &outputs, scope)?;
        graph.declared = proto.output.iter().map(declared).collect();
        Ok(graph)
    }

    /// Reads the nodes of a graph whose inputs and weights are in the scope.
    fn body(&mut self, nodes: &'a [NodeProto], inputs: Vec<usize>, outputs: &[&str], scope: Scope) -> Result<Graph> {
        if self.scopes.len() >= DEEPEST {
            return Err(fault(format!("graphs and functions are nested more than {DEEPEST} deep")));
        }
        self.count(inputs.len() + outputs.len())?;
        self.scopes.push(scope);
        let mut list = Vec::new();
        for node in nodes {
            if let Some(node) = self.node(node)? {
                list.push(node);
            }
        }
        let find =
            |&name: &&str| self.find(name).ok_or_else(|| fault(format!("output '{name}' is computed by no node")));
        let outputs: Vec<Source> = outputs.iter().map(find).collect::<Result<_>>()?;
        let Some(scope) = self.scopes.pop() else { return Ok(Graph::default()) };
        Ok(Graph { inputs, nodes: list, outputs, slots: scope.slots, captures: scope.captures, ..Graph::default() })
    }

    /// Counts nodes, and what takes memory like them.
    fn count(&mut self, more: usize) -> Result<()> {
        self.nodes = self.nodes.saturating_add(more);
        match self.nodes > MOST_NODES {
            true => Err(fault(format!("the model has more than {MOST_NODES} nodes"))),
            false => Ok(()),
        }
    }

    /// Adds a tensor of the file to the weights.
    fn weight(&mut self, name: &str, proto: &TensorProto) -> Result<Source> {
        if self.scopes.iter().any(|scope| scope.closed) {
            self.copied = self.copied.saturating_add(proto.encoded_len());
            if self.copied > MOST_COPIED {
                return Err(fault("the constants of its functions take too much memory"));
            }
        }
        let read = || {
            ElementType::of(proto.data_type)?;
            self.external.resolve(proto)
        };
        let proto = read().map_err(|error| fault(format!("tensor '{name}': {}", detail(&error))))?;
        self.weights.push(Weight::raw(name, proto));
        Ok(Source::Weight(self.weights.len() - 1))
    }

    /// The source of a name, in the innermost graph or those around it.
    fn find(&mut self, name: &str) -> Option<Source> {
        self.find_at(name, self.scopes.len().checked_sub(1)?)
    }

    fn find_at(&mut self, name: &str, level: usize) -> Option<Source> {
        if let Some(&source) = self.scopes[level].names.get(name) {
            return Some(source);
        }
        if self.scopes[level].closed || level == 0 {
            return None;
        }
        match self.find_at(name, level - 1)? {
            Source::Weight(weight) => Some(Source::Weight(weight)),
            outer => {
                let slot = self.scopes[level].slot(name);
                self.scopes[level].captures.push((outer, slot));
                Some(Source::Slot(slot))
            }
        }
    }

    /// Reads a node; `None` for one that only gives a value another name.
    fn node(&mut self, proto: &'a NodeProto) -> Result<Option<Node>> {
        self.count(1)?;
        let mut inputs = Vec::with_capacity(proto.input.len());
        for name in &proto.input {
            inputs.push(match name.as_str() {
                "" => None,
                name => Some(self.find(name).ok_or_else(|| {
                    fault(format!(
                        "node '{}' ({}) reads '{name}', which nothing before it gives",
                        proto.name, proto.op_type
                    ))
                })?),
            });
        }
        if let Some(scope) = self.scopes.last_mut() {
            for name in &proto.output {
                scope.define(name, || match proto.name.as_str() {
                    "" => format!("a node without a name ({})", proto.op_type),
                    node => format!("node '{node}' ({})", proto.op_type),
                })?;
            }
        }
        if let Some(source) = self.renamed(proto, &inputs)? {
            if let (Some(scope), Some(output)) = (self.scopes.last_mut(), proto.output.first()) {
                scope.names.insert(output.clone(), source);
            }
            return Ok(None);
        }
        let place = domain(&proto.domain);
        let opset = self.opsets.last().and_then(|sets| sets.get(place).or_else(|| sets.get(""))).copied().unwrap_or(1);
        let mut node = Node {
            name: proto.name.clone(),
            op_type: proto.op_type.clone(),
            opset,
            attributes: Vec::new(),
            inputs,
            outputs: Vec::new(),
            dead: Vec::new(),
            body: Body::Function(Graph::default()),
        };
        if let Some(body) = self.content(proto, place).map_err(|error| of_node(error, &node))? {
            node.body = body;
        }
        node.attributes = proto.attribute.iter().filter(|attribute| attribute.g.is_none()).cloned().collect();
        if let Some(scope) = self.scopes.last_mut() {
            node.outputs = proto.output.iter().map(|name| (!name.is_empty()).then(|| scope.slot(name))).collect();
        }
        Ok(Some(node))
    }

    /// The source that a node passes on unchanged, or the weight that it is.
    fn renamed(&mut self, proto: &NodeProto, inputs: &[Option<Source>]) -> Result<Option<Source>> {
        let attribute = |name: &str| proto.attribute.iter().find(|attribute| attribute.name == name);
        match (proto.op_type.as_str(), inputs) {
            ("Identity", [Some(source)]) if domain(&proto.domain).is_empty() => Ok(Some(*source)),
            ("Constant", _) if domain(&proto.domain).is_empty() => {
                let name = proto.output.first().map_or("", String::as_str);
                let tensor = match attribute("value").and_then(|attribute| attribute.t.as_ref()) {
                    Some(tensor) => tensor.clone(),
                    None => match proto.attribute.iter().find_map(constant) {
                        Some(tensor) => tensor,
                        None => return Ok(None),
                    },
                };
                self.weight(name, &tensor).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// What a node does; `None` and a line in the list of unknown operators if that is not known.
    fn content(&mut self, proto: &'a NodeProto, place: &'a str) -> Result<Option<Body>> {
        let graph = |name: &str| {
            let found = proto.attribute.iter().find(|attribute| attribute.name == name);
            found
                .and_then(|attribute| attribute.g.as_ref())
                .ok_or_else(|| fault(format!("the graph '{name}' is missing")))
        };
        if let Some(&function) = self.functions.get(&(place, proto.op_type.as_str())) {
            return self.function(function, proto).map(Some);
        }
        match (place, proto.op_type.as_str()) {
            ("", "If") => {
                let (then, otherwise) = (graph("then_branch")?, graph("else_branch")?);
                let then = self.graph(then, Scope::default())?;
                Ok(Some(Body::If { then, otherwise: self.graph(otherwise, Scope::default())? }))
            }
            ("", "Loop") => Ok(Some(Body::Loop(self.graph(graph("body")?, Scope::default())?))),
            ("", "Scan") => Ok(Some(Body::Scan(self.graph(graph("body")?, Scope::default())?))),
            (place, operator) => {
                let found = ops::find(place, operator).map(Body::Operator);
                if found.is_none() {
                    self.report(place, proto);
                }
                Ok(found)
            }
        }
    }

    fn report(&mut self, place: &str, proto: &NodeProto) {
        let operator = if place.is_empty() { proto.op_type.clone() } else { format!("{place}.{}", proto.op_type) };
        let output = proto.output.first().cloned().unwrap_or_default();
        let name = if proto.name.is_empty() { output } else { proto.name.clone() };
        match self.unknown.iter_mut().find(|(known, _)| *known == operator) {
            Some((_, names)) => names.push(name),
            None => self.unknown.push((operator, vec![name])),
        }
    }

    /// Reads a function of the file, with the attributes of this call.
    fn function(&mut self, function: &'a FunctionProto, call: &NodeProto) -> Result<Body> {
        let mut scope = Scope { closed: true, ..Scope::default() };
        let inputs = function.input.iter().map(|name| scope.slot(name)).collect();
        let outputs: Vec<&str> = function.output.iter().map(String::as_str).collect();
        // Attributes differ from call to call; the nodes live as long as the file, which is short.
        let nodes: Vec<NodeProto> = function.node.iter().map(|node| bound(node, function, call)).collect();
        let mut inner = Builder {
            opsets: vec![versions(&function.opset_import)],
            functions: self.functions.clone(),
            external: self.external.clone(),
            weights: std::mem::take(&mut self.weights),
            scopes: std::mem::take(&mut self.scopes),
            nodes: self.nodes,
            copied: self.copied,
            unknown: std::mem::take(&mut self.unknown),
        };
        let graph = inner.body(&nodes, inputs, &outputs, scope);
        (self.weights, self.scopes) = (inner.weights, inner.scopes);
        (self.nodes, self.copied, self.unknown) = (inner.nodes, inner.copied, inner.unknown);
        graph.map(Body::Function)
    }
}
