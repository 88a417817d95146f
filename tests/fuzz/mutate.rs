//! Mutations of inputs, as functions of a seed.

/// Numbers at which code often changes what it does.
const NUMBERS: [u64; 14] = [
    0,
    1,
    2,
    7,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x1_0000,
    0x7fff_ffff,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    0xffff_ffff_ffff_ffff,
];

/// The mutations of one input.
pub struct Mutator(u64);

impl Mutator {
    /// The mutations of input `count` of a target.
    pub fn new(seed: u64, target: &str, count: usize) -> Mutator {
        let name = target
            .bytes()
            .fold(seed ^ 0x9e37_79b9_7f4a_7c15, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
        Mutator(name ^ (count as u64).wrapping_mul(0xbf58_476d_1ce4_e5b9))
    }

    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `range`, or 0.
    fn below(&mut self, range: usize) -> usize {
        (self.next() % range.max(1) as u64) as usize
    }

    /// An entry of the corpus after a few mutations, at most `longest` bytes.
    pub fn input(&mut self, corpus: &[Vec<u8>], longest: usize) -> Vec<u8> {
        let mut input = corpus[self.below(corpus.len())].clone();
        for _ in 0..1 << self.below(5) {
            self.mutate(&mut input, corpus);
            input.truncate(longest);
        }
        input
    }

    fn mutate(&mut self, input: &mut Vec<u8>, corpus: &[Vec<u8>]) {
        let at = self.below(input.len());
        // Lengths of what is moved: mostly short.
        let most = 1 << self.below(9);
        let len = 1 + self.below(most);
        let end = (at + len).min(input.len());
        match self.below(12) {
            0..=2 if !input.is_empty() => input[at] ^= 1 << self.below(8),
            3 if !input.is_empty() => input[at] = self.next() as u8,
            4 | 5 => {
                let number = NUMBERS[self.below(NUMBERS.len())].wrapping_add(self.below(3) as u64).wrapping_sub(1);
                let (width, big) = (1 << self.below(4), self.below(2) == 0);
                let bytes = if big {
                    number.to_be_bytes()[8 - width..].to_vec()
                } else {
                    number.to_le_bytes()[..width].to_vec()
                };
                input.iter_mut().skip(at).zip(bytes).for_each(|(byte, new)| *byte = new);
            }
            6 => drop(input.drain(at..end)),
            7 => {
                let part = input[at.min(end)..end].to_vec();
                let to = self.below(input.len() + 1);
                input.splice(to..to, part);
            }
            8 => {
                let bytes: Vec<u8> = (0..len.min(8)).map(|_| self.next() as u8).collect();
                input.splice(at..at, bytes);
            }
            9 => {
                // A part of another entry in the place of a part of this one.
                let other = &corpus[self.below(corpus.len())];
                let from = self.below(other.len());
                let part = other[from..(from + len).min(other.len())].to_vec();
                let replaced = if self.below(2) == 0 { at } else { end };
                input.splice(at..replaced, part);
            }
            10 => input.truncate(at),
            _ => {
                // A digit of a number in a text.
                let digits: Vec<usize> = (0..input.len()).filter(|&i| input[i].is_ascii_digit()).collect();
                if let Some(&at) = digits.get(self.below(digits.len())) {
                    input[at] = b'0' + self.below(10) as u8;
                }
            }
        }
    }
}
