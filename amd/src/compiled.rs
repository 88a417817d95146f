//! What the compiler made of a kernel.

/// Figures of a compiled kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Compiled {
    /// Invocations of a subgroup.
    pub lanes: u64,
    /// Vector registers of an invocation.
    pub vgprs: u64,
    /// Subgroups that a SIMD runs at the same time, as the driver counts them: see the text of the table.
    pub subgroups: u64,
    pub instructions: u64,
    /// Vector and scalar registers that are kept in memory.
    pub spilled: u64,
    /// Bytes of memory of an invocation.
    pub scratch: u64,
    pub hottest: Mix,
}

/// The instructions of a block. One that does two things at once counts as two.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mix {
    pub instructions: u64,
    pub multiply_adds: u64,
    /// Loads from and stores to the memory of the workgroup.
    pub lds_loads: u64,
    pub lds_stores: u64,
    pub memory_loads: u64,
}

impl Mix {
    /// Returns the part of the instructions that are multiply-adds.
    pub fn share(&self) -> f64 {
        if self.instructions == 0 { 0.0 } else { self.multiply_adds as f64 / self.instructions as f64 }
    }

    /// Returns the multiply-adds for each load from the memory of the workgroup; infinite if there are no loads.
    pub fn reuse(&self) -> f64 {
        if self.multiply_adds == 0 { 0.0 } else { self.multiply_adds as f64 / self.lds_loads as f64 }
    }
}

impl Compiled {
    /// Returns all figures, in the order of the fields.
    pub fn numbers(&self) -> [u64; 11] {
        let Compiled { lanes, vgprs, subgroups, instructions, spilled, scratch, hottest: of } = *self;
        let whole = [lanes, vgprs, subgroups, instructions, spilled, scratch];
        let block = [of.instructions, of.multiply_adds, of.lds_loads, of.lds_stores, of.memory_loads];
        std::array::from_fn(|at| if at < whole.len() { whole[at] } else { block[at - whole.len()] })
    }

    pub fn of_numbers(numbers: [u64; 11]) -> Compiled {
        let [lanes, vgprs, subgroups, instructions, spilled, scratch, block @ ..] = numbers;
        let [instructions_of_block, multiply_adds, lds_loads, lds_stores, memory_loads] = block;
        let hottest = Mix { instructions: instructions_of_block, multiply_adds, lds_loads, lds_stores, memory_loads };
        Compiled { lanes, vgprs, subgroups, instructions, spilled, scratch, hottest }
    }
}
