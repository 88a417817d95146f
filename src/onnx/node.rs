//! A graph as it is executed: values have numbers instead of names.

use super::call::Operator;
use super::element_type::ElementType;
use super::proto::AttributeProto;

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// Computed, or an input of the graph: its place among the values of the graph.
    Slot(usize),
    /// Of the file: its place among the model's weights.
    Weight(usize),
}

/// What a node does.
pub(super) enum Body {
    Operator(Operator),
    If {
        then: Graph,
        otherwise: Graph,
    },
    Loop(Graph),
    Scan(Graph),
    /// A function of the file.
    Function(Graph),
}

impl Body {
    pub fn graphs(&self) -> impl Iterator<Item = &Graph> {
        let (first, second) = match self {
            Body::Operator(_) => (None, None),
            Body::If { then, otherwise } => (Some(then), Some(otherwise)),
            Body::Loop(graph) | Body::Scan(graph) | Body::Function(graph) => (Some(graph), None),
        };
        first.into_iter().chain(second)
    }

    pub fn graphs_mut(&mut self) -> impl Iterator<Item = &mut Graph> {
        let (first, second) = match self {
            Body::Operator(_) => (None, None),
            Body::If { then, otherwise } => (Some(then), Some(otherwise)),
            Body::Loop(graph) | Body::Scan(graph) | Body::Function(graph) => (Some(graph), None),
        };
        first.into_iter().chain(second)
    }
}

/// A call of an operator.
pub(super) struct Node {
    pub name: String,
    pub op_type: String,
    /// The version of its operator set.
    pub opset: i64,
    pub attributes: Vec<AttributeProto>,
    /// `None` where an input is left out.
    pub inputs: Vec<Option<Source>>,
    /// The slots that it fills, `None` for outputs that nothing reads.
    pub outputs: Vec<Option<usize>>,
    /// Slots that no later node reads.
    pub dead: Vec<usize>,
    pub body: Body,
}

impl Node {
    pub fn attribute(&self, name: &str) -> Option<&AttributeProto> {
        self.attributes.iter().find(|attribute| attribute.name == name)
    }

    /// All values that this node and the graphs in it read from its own graph.
    pub fn reads(&self) -> impl Iterator<Item = Source> {
        let captured = self.body.graphs().flat_map(|graph| graph.captures.iter().map(|&(outer, _)| outer));
        self.inputs.iter().flatten().copied().chain(captured)
    }
}

/// The type of an output, and its sizes, with 0 for open sizes; `None` if the file does not say the type.
pub(super) type Declared = Option<(ElementType, Vec<usize>)>;

/// A graph, or the body of a node.
#[derive(Default)]
pub(super) struct Graph {
    /// The slots of its inputs.
    pub inputs: Vec<usize>,
    pub nodes: Vec<Node>,
    pub outputs: Vec<Source>,
    /// What the file says of the outputs; nothing for functions.
    pub declared: Vec<Declared>,
    /// The number of slots.
    pub slots: usize,
    /// What it reads of the graph around it, and the slots that it reads this from.
    pub captures: Vec<(Source, usize)>,
}

impl Graph {
    /// Removes nodes whose outputs nothing reads, and writes down after which node each value is dead.
    pub fn finish(&mut self) {
        let mut used = vec![false; self.slots];
        let mark = |used: &mut Vec<bool>, source: Source| match source {
            Source::Slot(slot) => !std::mem::replace(&mut used[slot], true),
            Source::Weight(_) => false,
        };
        self.outputs.iter().for_each(|&output| _ = mark(&mut used, output));
        let mut kept = Vec::with_capacity(self.nodes.len());
        for mut node in std::mem::take(&mut self.nodes).into_iter().rev() {
            node.outputs.iter_mut().for_each(|output| *output = output.filter(|&slot| used[slot]));
            if node.outputs.iter().all(Option::is_none) {
                continue;
            }
            node.body.graphs_mut().for_each(Graph::finish);
            let reads: Vec<Source> = node.reads().collect();
            for source in reads {
                if let (true, Source::Slot(slot)) = (mark(&mut used, source), source) {
                    node.dead.push(slot);
                }
            }
            kept.push(node);
        }
        kept.reverse();
        self.nodes = kept;
    }

    /// Calls `f` for each node. The nodes of inner graphs come after the node that has the graph.
    pub fn visit(&self, f: &mut impl FnMut(&Node)) {
        for node in &self.nodes {
            f(node);
            node.body.graphs().for_each(|graph| graph.visit(f));
        }
    }
}
