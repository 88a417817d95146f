//! The pickle machine: a stack, a memo, and objects that are plain data. It calls nothing.
//!
//! The opcodes are the opcodes of CPython's `Lib/pickle.py`, protocols 0 to 5. The callables that PyTorch needs are a
//! closed list in [`calls`](super::calls); any other name is an error.
//!
//! Every opcode takes a byte of the file, makes at most one object, and copies at most what it takes off the stack.
//! Further copies are limited by [`Machine::spend`], so that time and memory are linear in the size of the file.

use std::collections::HashMap;

use super::calls::Known;
use super::tensors::{PickleStorage, TensorView};
use crate::checkpoint::file_dtype::FileDType;
use crate::checkpoint::{Fault, text as quoted};

/// The minimum bytes per object in a file that Python wrote: objects of fewer bytes are shared by all their uses.
const BYTES_PER_OBJECT: usize = 3;
/// The number of objects that a file of any size may have.
const OBJECTS: usize = 4096;

/// The index of an object.
pub(super) type Ref = usize;

/// An object of a pickle.
#[derive(Clone, Debug)]
pub(super) enum Object {
    None,
    Bool(bool),
    Int(i64),
    /// An integer beyond 64 bits.
    Large(Box<i128>),
    Float(f64),
    Text(String),
    Bytes(Vec<u8>),
    /// Also a set.
    List(Vec<Ref>),
    Tuple(Vec<Ref>),
    Dict(Vec<(Ref, Ref)>),
    /// A callable or a type that is supported.
    Known(Known),
    Storage(Box<PickleStorage>),
    Tensor(Box<TensorView>),
    /// A dtype of NumPy; `None` for a dtype that is not read.
    NumpyType(Option<FileDType>),
    /// A value that is skipped, and its description.
    Unsupported(&'static str),
}

pub(super) type Step<T> = Result<T, Fault>;

/// Runs the pickles of a file, one after the other.
pub(super) struct Machine<'a> {
    file: &'a [u8],
    at: usize,
    pub objects: Vec<Object>,
    stack: Vec<Ref>,
    /// The length of the stack at each mark.
    marks: Vec<usize>,
    memo: HashMap<u64, Ref>,
    /// Immutable objects by the one or two bytes that make them.
    shared: HashMap<[u8; 2], Ref>,
    /// The limit on the number of objects, and of entries of the memo.
    most: usize,
    /// The number of references and bytes that may still be copied.
    budget: usize,
}

impl<'a> Machine<'a> {
    pub fn new(file: &'a [u8]) -> Machine<'a> {
        let budget = file.len().saturating_mul(2).saturating_add(1024);
        let most = file.len() / BYTES_PER_OBJECT + OBJECTS;
        let (objects, stack, marks, memo, shared) = Default::default();
        Machine { file, at: 0, objects, stack, marks, memo, shared, most, budget }
    }

    /// The bytes after the last pickle.
    pub fn rest(&self) -> &'a [u8] {
        &self.file[self.at..]
    }

    /// Runs up to the next STOP.
    pub fn pickle(&mut self) -> Step<Ref> {
        self.stack.clear();
        self.marks.clear();
        self.memo.clear();
        loop {
            let place = self.at;
            let [opcode] = self.bytes()?;
            if self.objects.len().max(self.memo.len()) > self.most {
                let (most, bytes) = (self.most, self.file.len());
                let remedy = "no torch.save writes so many in so few; save long lists of numbers as tensors";
                return Err(format!("its pickle makes more than {most} objects in {bytes} bytes: {remedy}").into());
            }
            if opcode == b'.' {
                return self.pop();
            }
            self.step(opcode).map_err(|fault| match fault {
                Fault::File(detail) => Fault::File(format!("{detail} (byte {place} of its pickle)")),
                device => device,
            })?;
        }
    }

    fn step(&mut self, opcode: u8) -> Step<()> {
        match opcode {
            b'(' => self.marks.push(self.stack.len()),
            b'0' => self.pop().map(drop)?,
            b'1' => self.pop_mark().map(drop)?,
            b'2' => {
                let top = self.top()?;
                self.stack.push(top);
            }
            0x80 => self.protocol()?,
            0x95 => self.bytes::<8>().map(drop)?, // the length of a frame, which is not needed
            b'N' | 0x88 | 0x89 | b'I' | b'J' | b'K' | b'M' | b'L' | 0x8a | 0x8b | b'F' | b'G' => self.number(opcode)?,
            b'S' | b'T' | b'U' | b'V' | b'X' | 0x8c | 0x8d | b'B' | b'C' | 0x8e | 0x96 => self.text(opcode)?,
            b')' | b't' | 0x85..=0x87 | b']' | b'l' | b'}' | b'd' | 0x8f | 0x91 => self.collection(opcode)?,
            b'a' | b'e' | 0x90 | b's' | b'u' => self.fill(opcode)?,
            b'p' | b'q' | b'r' | 0x94 | b'g' | b'h' | b'j' => self.memory(opcode)?,
            b'c' | 0x93 | b'R' | 0x81 | b'b' | b'Q' => self.call(opcode)?,
            other => {
                let name = char::from(other).escape_default();
                return Err(format!(
                    "its pickle has the opcode {other:#04x} ({name}), which no file of torch.save needs"
                )
                .into());
            }
        }
        Ok(())
    }

    fn protocol(&mut self) -> Step<()> {
        match self.bytes()? {
            [0..=5] => Ok(()),
            [other] => Err(format!("its pickle is of protocol {other}, and 5 is the last that is known").into()),
        }
    }

    fn number(&mut self, opcode: u8) -> Step<()> {
        let object = match opcode {
            b'N' => return self.push_shared([opcode, 0], Object::None),
            0x88 => return self.push_shared([opcode, 0], Object::Bool(true)),
            0x89 => return self.push_shared([opcode, 0], Object::Bool(false)),
            b'K' => {
                let [value] = self.bytes()?;
                return self.push_shared([opcode, value], Object::Int(value.into()));
            }
            b'J' => Object::Int(i32::from_le_bytes(self.bytes()?).into()),
            b'M' => Object::Int(u16::from_le_bytes(self.bytes()?).into()),
            0x8a => {
                let length = u8::from_le_bytes(self.bytes()?).into();
                whole(self.take(length)?)?
            }
            0x8b => {
                let length = self.length(opcode)?;
                whole(self.take(length)?)?
            }
            b'G' => Object::Float(f64::from_be_bytes(self.bytes()?)),
            b'F' => Object::Float(parsed(self.line()?)?),
            _ => match self.line()? {
                "00" => Object::Bool(false),
                "01" => Object::Bool(true),
                digits => number(parsed(digits.strip_suffix('L').unwrap_or(digits))?),
            },
        };
        self.push(object);
        Ok(())
    }

    fn text(&mut self, opcode: u8) -> Step<()> {
        let object = match opcode {
            b'S' => {
                let line = self.line()?;
                let inner = line.len().checked_sub(1).and_then(|end| line.get(1..end)).unwrap_or_default();
                if inner.contains('\\') || line.len() < 2 {
                    return Err("its pickle has a string with escapes, as only protocol 0 has".into());
                }
                Object::Text(inner.to_string())
            }
            b'V' => match self.line()? {
                line if line.contains('\\') => {
                    return Err("its pickle has a string with escapes, as only protocol 0 has".into());
                }
                line => Object::Text(line.to_string()),
            },
            _ => {
                let length = self.length(opcode)?;
                let bytes = self.take(length)?;
                match opcode {
                    b'B' | b'C' | 0x8e | 0x96 => Object::Bytes(bytes.to_vec()),
                    _ => Object::Text(utf8(bytes)?.to_string()),
                }
            }
        };
        self.push(object);
        Ok(())
    }

    fn collection(&mut self, opcode: u8) -> Step<()> {
        let object = match opcode {
            b')' => return self.push_shared([opcode, 0], Object::Tuple(Vec::new())),
            b't' => Object::Tuple(self.pop_mark()?),
            0x85..=0x87 => {
                let first = self.stack.len().checked_sub(usize::from(opcode - 0x84));
                let first = first.filter(|first| self.marks.last().is_none_or(|mark| mark <= first)).ok_or(EMPTY)?;
                Object::Tuple(self.stack.split_off(first))
            }
            b']' | 0x8f => Object::List(Vec::new()),
            b'l' | 0x91 => Object::List(self.pop_mark()?),
            b'd' => Object::Dict(pairs(self.pop_mark()?)?),
            _ => Object::Dict(Vec::new()),
        };
        self.push(object);
        Ok(())
    }

    /// Moves the items on the stack into the collection below them.
    fn fill(&mut self, opcode: u8) -> Step<()> {
        let items = match opcode {
            b'a' => vec![self.pop()?],
            b's' => {
                let value = self.pop()?;
                vec![self.pop()?, value]
            }
            _ => self.pop_mark()?,
        };
        let top = self.top()?;
        match (&mut self.objects[top], opcode) {
            (Object::List(list), b'a' | b'e' | 0x90) => list.extend(items),
            (Object::Dict(dict), b's' | b'u') => dict.extend(pairs(items)?),
            _ => return Err("its pickle adds items to an object that is not a list or dict".into()),
        }
        Ok(())
    }

    fn memory(&mut self, opcode: u8) -> Step<()> {
        let key = match opcode {
            b'p' | b'g' => parsed(self.line()?)?,
            b'q' | b'h' => u8::from_le_bytes(self.bytes()?).into(),
            b'r' | b'j' => u32::from_le_bytes(self.bytes()?).into(),
            _ => self.memo.len() as u64,
        };
        if matches!(opcode, b'g' | b'h' | b'j') {
            let known = self.memo.get(&key).copied();
            self.stack.push(known.ok_or("its pickle refers to an object that it did not store")?);
        } else {
            let top = self.top()?;
            self.memo.insert(key, top);
        }
        Ok(())
    }

    fn call(&mut self, opcode: u8) -> Step<()> {
        match opcode {
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.push(Object::Known(Known::find(module, name)?));
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                match (&self.objects[module], &self.objects[name]) {
                    (Object::Text(module), Object::Text(name)) => {
                        let known = Known::find(module, name)?;
                        self.push(Object::Known(known));
                    }
                    _ => return Err("its pickle has a name that is not a string".into()),
                }
            }
            b'Q' => {
                let id = self.pop()?;
                let storage = self.storage(id)?;
                self.push(Object::Storage(Box::new(storage)));
            }
            b'b' => {
                let (attributes, object) = (self.pop()?, self.top()?);
                self.build(object, attributes)?;
            }
            _ => {
                let (arguments, callable) = (self.pop()?, self.pop()?);
                match (&self.objects[callable], &self.objects[arguments]) {
                    (&Object::Known(known), Object::Tuple(items)) => {
                        let items = items.clone();
                        self.spend(items.len())?;
                        let result = self.called(known, &items)?;
                        self.stack.push(result);
                    }
                    _ => return Err("its pickle calls an object that is not a function".into()),
                }
            }
        }
        Ok(())
    }

    /// Subtracts from the number that may still be copied.
    pub fn spend(&mut self, count: usize) -> Step<()> {
        self.budget = self.budget.checked_sub(count).ok_or("its pickle copies objects too often")?;
        Ok(())
    }

    /// Adds an object without pushing it.
    pub fn make(&mut self, object: Object) -> Ref {
        self.objects.push(object);
        self.objects.len() - 1
    }

    fn push(&mut self, object: Object) {
        let made = self.make(object);
        self.stack.push(made);
    }

    /// Pushes the object that these bytes made before, or else `object`.
    fn push_shared(&mut self, code: [u8; 2], object: Object) -> Step<()> {
        let made = match self.shared.get(&code) {
            Some(&made) => made,
            None => self.make(object),
        };
        self.shared.insert(code, made);
        self.stack.push(made);
        Ok(())
    }

    fn pop(&mut self) -> Step<Ref> {
        let floor = self.marks.last().copied().unwrap_or(0);
        if self.stack.len() <= floor {
            return Err(EMPTY.into());
        }
        self.stack.pop().ok_or(EMPTY.into())
    }

    fn top(&self) -> Step<Ref> {
        self.stack.last().copied().ok_or(EMPTY.into())
    }

    fn pop_mark(&mut self) -> Step<Vec<Ref>> {
        let mark = self.marks.pop().filter(|&mark| mark <= self.stack.len());
        Ok(self.stack.split_off(mark.ok_or(EMPTY)?))
    }

    fn take(&mut self, length: usize) -> Step<&'a [u8]> {
        let end = self.at.checked_add(length).filter(|&end| end <= self.file.len()).ok_or("its pickle is cut off")?;
        let taken = &self.file[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn bytes<const N: usize>(&mut self) -> Step<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| "its pickle is cut off".into())
    }

    /// The length before a string or a number.
    fn length(&mut self, opcode: u8) -> Step<usize> {
        let length = match opcode {
            b'U' | 0x8c | b'C' => u8::from_le_bytes(self.bytes()?).into(),
            0x8d | 0x8e | 0x96 => u64::from_le_bytes(self.bytes()?),
            _ => u32::from_le_bytes(self.bytes()?).into(),
        };
        usize::try_from(length).map_err(|_| "its pickle is cut off".into())
    }

    fn line(&mut self) -> Step<&'a str> {
        let rest = self.rest();
        let end = rest.iter().position(|&byte| byte == b'\n').ok_or("its pickle is cut off")?;
        self.at += end + 1;
        utf8(&rest[..end])
    }
}

const EMPTY: &str = "its pickle takes more off the stack than is there";

fn utf8(bytes: &[u8]) -> Step<&str> {
    std::str::from_utf8(bytes).map_err(|_| "its pickle has a string that is not UTF-8".into())
}

fn parsed<T: std::str::FromStr>(text: &str) -> Step<T> {
    text.trim().parse().map_err(|_| format!("its pickle has {} in place of a number", quoted(text)).into())
}

fn pairs(items: Vec<Ref>) -> Step<Vec<(Ref, Ref)>> {
    match items.as_chunks::<2>() {
        (pairs, []) => Ok(pairs.iter().map(|&[key, value]| (key, value)).collect()),
        _ => Err("its pickle has a key without a value".into()),
    }
}

fn number(value: i128) -> Object {
    i64::try_from(value).map_or_else(|_| Object::Large(Box::new(value)), Object::Int)
}

/// A little-endian number in two's complement, of up to 16 bytes.
pub(super) fn whole(bytes: &[u8]) -> Step<Object> {
    let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
    let mut all = [if negative { 0xff } else { 0 }; 16];
    let low = all.get_mut(..bytes.len()).ok_or_else(|| format!("its pickle has a number of {} bytes", bytes.len()))?;
    low.copy_from_slice(bytes);
    Ok(number(i128::from_le_bytes(all)))
}
