//! A small assembler for the kernel's BPF machine
//! (`Documentation/bpf/standardization/instruction-set.rst`).
//!
//! Invariants: instructions are emitted in the order in which they were written. A label is bound
//! once. A jump to a label that was never bound, or that is too far away, is an error of
//! [`Assembler::finish`], never a wrong program. The verifier judges what the program may do.

use crate::sys::Instruction;

/// Converts an offset or a size of at most 32,767 bytes for instructions.
#[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "layouts are that small")]
pub(crate) const fn layout_bytes(bytes: usize) -> i16 {
    bytes as i16
}

/// The size of a layout, in bytes.
macro_rules! size {
    ($layout:ty) => {
        $crate::asm::layout_bytes(size_of::<$layout>())
    };
}

/// The offset of a field in a layout, in bytes: `offset!(PageKey, ino)`.
macro_rules! offset {
    ($layout:ty, $($field:tt)+) => {
        $crate::asm::layout_bytes(std::mem::offset_of!($layout, $($field)+))
    };
}

/// The place of a field of a program's stack, from the stack's end:
/// `stack!(SyncStack, record.began)`.
macro_rules! stack {
    ($layout:ty, $($field:tt)+) => {
        $crate::asm::offset!($layout, $($field)+) - $crate::asm::size!($layout)
    };
}

pub(crate) use {offset, size, stack};

/// A register. `R0` is a call's result. `R1` to `R5` are its arguments and are lost by it; `R6` to
/// `R9` survive it. `R10` is the end of the stack of 512 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Register {
    R0 = 0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
}

/// The number of bytes that a load or store moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Width {
    B1 = 0x10,
    B2 = 0x08,
    B4 = 0x00,
    B8 = 0x18,
}

impl Width {
    /// Returns the width of this number of bytes.
    pub(crate) fn of(bytes: u16) -> Option<Self> {
        match bytes {
            1 => Some(Self::B1),
            2 => Some(Self::B2),
            4 => Some(Self::B4),
            8 => Some(Self::B8),
            _ => None,
        }
    }
}

/// An operation on two numbers of 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AluOp {
    Add = 0x00,
    Sub = 0x10,
    Mul = 0x20,
    Div = 0x30,
    And = 0x50,
    ShiftLeft = 0x60,
    ShiftRight = 0x70,
    Xor = 0xa0,
    Set = 0xb0,
    ShiftRightSigned = 0xc0,
}

/// The condition of a jump, which compares the first operand with the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Condition {
    Equal = 0x10,
    AtLeast = 0x30,
    NotEqual = 0x50,
    Below = 0xa0,
    AtMostSigned = 0xd0,
}

/// A function of the kernel that programs may call (`bpf-helpers(7)`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KernelHelper {
    MapLookup = 1,
    MapUpdate = 2,
    MapDelete = 3,
    Nanoseconds = 5,
    Random = 7,
    Processor = 8,
    ProcessAndThread = 14,
    TaskName = 16,
    /// The address of the task's `task_struct`.
    Task = 35,
    /// Linux 5.5.
    ReadKernel = 113,
    /// Linux 5.8.
    RingOutput = 130,
}

/// A position in the program that jumps can target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Label(usize);

/// The reason why a program can't be finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AssemblyError {
    #[error("a jump at instruction {at} leads nowhere")]
    Unbound { at: usize },
    #[error("a jump at instruction {at} leads too far")]
    TooFar { at: usize },
    #[error("a label is bound twice, at instruction {at} again")]
    BoundTwice { at: usize },
}

// Operation codes, of loads and stores without their width.
const OPCODE_LOAD_WIDE: u8 = 0x18;
const OPCODE_LOAD: u8 = 0x61;
const OPCODE_STORE_IMMEDIATE: u8 = 0x62;
const OPCODE_STORE: u8 = 0x63;
const OPCODE_ATOMIC: u8 = 0xc3;
const OPCODE_JUMP: u8 = 0x05;
const OPCODE_CALL: u8 = 0x85;
const OPCODE_EXIT: u8 = 0x95;
const OPCODE_ALU: u8 = 0x07;
/// The second operand is a register.
const REGISTER_OPERAND: u8 = 0x08;
/// The constant of a wide load is the descriptor of a map.
const MAP_FD_OPERAND: u8 = 1;

/// A program under construction.
#[derive(Debug, Default)]
pub(crate) struct Assembler {
    code: Vec<Instruction>,
    labels: Vec<Option<usize>>,
    jumps: Vec<(usize, Label)>,
    error: Option<AssemblyError>,
}

impl Assembler {
    /// Makes an empty program.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    fn push(&mut self, code: u8, dst: u8, src: u8, offset: i16, immediate: i32) {
        let registers = if cfg!(target_endian = "little") { dst | src << 4 } else { dst << 4 | src };
        self.code.push(Instruction { code, registers, offset, immediate });
    }

    /// `dst = dst op src`.
    pub(crate) fn alu(&mut self, op: AluOp, dst: Register, src: Register) {
        self.push(OPCODE_ALU | REGISTER_OPERAND | op as u8, dst as u8, src as u8, 0, 0);
    }

    /// `dst = dst op constant`.
    pub(crate) fn alu_constant(&mut self, op: AluOp, dst: Register, constant: i32) {
        self.push(OPCODE_ALU | op as u8, dst as u8, 0, 0, constant);
    }

    /// `dst = src`.
    pub(crate) fn set(&mut self, dst: Register, src: Register) {
        self.alu(AluOp::Set, dst, src);
    }

    /// `dst = constant`, sign-extended.
    pub(crate) fn constant(&mut self, dst: Register, constant: i32) {
        self.alu_constant(AluOp::Set, dst, constant);
    }

    /// `dst = constant` of 64 bits: two instructions.
    pub(crate) fn wide_constant(&mut self, dst: Register, constant: u64) {
        let half = |bits: u64| u32::try_from(bits & 0xffff_ffff).unwrap_or(u32::MAX).cast_signed();
        self.push(OPCODE_LOAD_WIDE, dst as u8, 0, 0, half(constant));
        self.push(0, 0, 0, 0, half(constant >> 32));
    }

    /// `dst = the map` with this descriptor: two instructions.
    pub(crate) fn map(&mut self, dst: Register, fd: i32) {
        self.push(OPCODE_LOAD_WIDE, dst as u8, MAP_FD_OPERAND, 0, fd);
        self.push(0, 0, 0, 0, 0);
    }

    /// `dst = [base + offset]`, the upper bytes zero.
    pub(crate) fn load(&mut self, width: Width, dst: Register, base: Register, offset: i16) {
        self.push(OPCODE_LOAD | width as u8, dst as u8, base as u8, offset, 0);
    }

    /// `[base + offset] = src`.
    pub(crate) fn store(&mut self, width: Width, base: Register, offset: i16, src: Register) {
        self.push(OPCODE_STORE | width as u8, base as u8, src as u8, offset, 0);
    }

    /// `[base + offset] = constant`.
    pub(crate) fn store_constant(&mut self, width: Width, base: Register, offset: i16, constant: i32) {
        self.push(OPCODE_STORE_IMMEDIATE | width as u8, base as u8, 0, offset, constant);
    }

    /// `[base + offset] += src`, atomically among all processors; 64 bits.
    pub(crate) fn atomic_add(&mut self, base: Register, offset: i16, src: Register) {
        self.push(OPCODE_ATOMIC | Width::B8 as u8, base as u8, src as u8, offset, 0);
    }

    /// Calls a function of the kernel.
    pub(crate) fn call(&mut self, helper: KernelHelper) {
        self.push(OPCODE_CALL, 0, 0, 0, helper as i32);
    }

    /// Ends the program; `R0` is its result.
    pub(crate) fn exit(&mut self) {
        self.push(OPCODE_EXIT, 0, 0, 0, 0);
    }

    /// Makes a new label, to be bound later.
    pub(crate) fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Binds the label to the next instruction.
    pub(crate) fn bind(&mut self, label: Label) {
        let at = self.code.len();
        if self.labels[label.0].replace(at).is_some() {
            self.error.get_or_insert(AssemblyError::BoundTwice { at });
        }
    }

    /// Jumps to the label.
    pub(crate) fn jump(&mut self, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.push(OPCODE_JUMP, 0, 0, 0, 0);
    }

    /// Jumps to the label if the comparison of `a` with `b` holds.
    pub(crate) fn jump_if(&mut self, condition: Condition, a: Register, b: Register, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.push(OPCODE_JUMP | REGISTER_OPERAND | condition as u8, a as u8, b as u8, 0, 0);
    }

    /// Jumps to the label if the comparison of `a` with a constant holds.
    pub(crate) fn jump_if_constant(
        &mut self,
        condition: Condition,
        a: Register,
        constant: i32,
        label: Label,
    ) {
        self.jumps.push((self.code.len(), label));
        self.push(OPCODE_JUMP | condition as u8, a as u8, 0, 0, constant);
    }

    /// `dst` = the address of a place on the stack.
    pub(crate) fn load_address(&mut self, dst: Register, at: i16) {
        self.set(dst, Register::R10);
        self.alu_constant(AluOp::Add, dst, i32::from(at));
    }

    /// `R1` = a map, `R2` = the address of a key on the stack.
    pub(crate) fn pass_map_and_key(&mut self, map: i32, key: i16) {
        self.map(Register::R1, map);
        self.load_address(Register::R2, key);
    }

    /// Returns the program, which ends at `out` with 0. Fails as [`Self::finish`] does.
    pub(crate) fn finish_at(mut self, out: Label) -> Result<Vec<Instruction>, AssemblyError> {
        self.bind(out);
        self.constant(Register::R0, 0);
        self.exit();
        self.finish()
    }

    /// Returns the instructions, with the distance of each jump filled in.
    pub(crate) fn finish(mut self) -> Result<Vec<Instruction>, AssemblyError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        for (at, label) in self.jumps {
            let to = self.labels[label.0].ok_or(AssemblyError::Unbound { at })?;
            // Counted from the next instruction.
            let next = at + 1;
            let distance =
                if to < next { i16::try_from(next - to).map(|back| -back) } else { i16::try_from(to - next) };
            self.code[at].offset = distance.map_err(|_| AssemblyError::TooFar { at })?;
        }
        Ok(self.code)
    }
}

#[cfg(test)]
mod tests {
    use super::Register::{R0, R1, R2, R6, R7, R10};
    use super::*;

    /// Returns the bytes of a program on a little-endian machine.
    fn bytes(assembler: Assembler) -> Vec<[u8; 8]> {
        let code = assembler.finish().unwrap();
        code.iter()
            .map(|one| {
                let (offset, immediate) = (one.offset.to_le_bytes(), one.immediate.to_le_bytes());
                let mut bytes = [one.code, one.registers, offset[0], offset[1], 0, 0, 0, 0];
                bytes[4..].copy_from_slice(&immediate);
                bytes
            })
            .collect()
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn instructions_are_encoded_as_in_the_standard() {
        let mut asm = Assembler::new();
        asm.set(R6, R1);
        asm.constant(R0, -1);
        asm.alu(AluOp::Add, R7, R6);
        asm.alu_constant(AluOp::ShiftRight, R7, 32);
        asm.load(Width::B4, R7, R6, 32);
        asm.load(Width::B1, R7, R6, 36);
        asm.store(Width::B8, R10, -16, R7);
        asm.store(Width::B2, R10, -2, R7);
        asm.store_constant(Width::B8, R10, -8, 0);
        asm.atomic_add(R0, 8, R7);
        asm.call(KernelHelper::ProcessAndThread);
        asm.exit();
        assert_eq!(
            bytes(asm),
            [
                [0xbf, 0x16, 0, 0, 0, 0, 0, 0],
                [0xb7, 0x00, 0, 0, 0xff, 0xff, 0xff, 0xff],
                [0x0f, 0x67, 0, 0, 0, 0, 0, 0],
                [0x77, 0x07, 0, 0, 32, 0, 0, 0],
                [0x61, 0x67, 32, 0, 0, 0, 0, 0],
                [0x71, 0x67, 36, 0, 0, 0, 0, 0],
                [0x7b, 0x7a, 0xf0, 0xff, 0, 0, 0, 0],
                [0x6b, 0x7a, 0xfe, 0xff, 0, 0, 0, 0],
                [0x7a, 0x0a, 0xf8, 0xff, 0, 0, 0, 0],
                [0xdb, 0x70, 8, 0, 0, 0, 0, 0],
                [0x85, 0, 0, 0, 14, 0, 0, 0],
                [0x95, 0, 0, 0, 0, 0, 0, 0],
            ]
        );
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn wide_constants_and_maps_take_two_instructions() {
        let mut asm = Assembler::new();
        asm.wide_constant(R1, 0xfedc_ba98_7654_3210);
        asm.map(R2, 5);
        assert_eq!(
            bytes(asm),
            [
                [0x18, 0x01, 0, 0, 0x10, 0x32, 0x54, 0x76],
                [0, 0, 0, 0, 0x98, 0xba, 0xdc, 0xfe],
                [0x18, 0x12, 0, 0, 5, 0, 0, 0],
                [0, 0, 0, 0, 0, 0, 0, 0],
            ]
        );
    }

    #[test]
    fn jumps_count_from_the_next_instruction_over_both_halves_of_a_wide_one() {
        let mut asm = Assembler::new();
        let (back, out) = (asm.label(), asm.label());
        asm.bind(back);
        asm.jump_if_constant(Condition::Equal, R1, 7, out);
        asm.wide_constant(R1, 7);
        asm.jump_if(Condition::NotEqual, R1, R2, back);
        asm.jump(out);
        asm.bind(out);
        asm.exit();
        let code = asm.finish().unwrap();
        assert_eq!([code[0].offset, code[3].offset, code[4].offset], [4, -4, 0]);
        assert_eq!([code[0].code, code[3].code, code[4].code], [0x15, 0x5d, 0x05]);
    }

    #[test]
    fn a_jump_to_nowhere_too_far_or_to_two_places_is_refused() {
        let mut asm = Assembler::new();
        let label = asm.label();
        asm.exit();
        asm.jump(label);
        assert_eq!(asm.finish(), Err(AssemblyError::Unbound { at: 1 }));

        let mut asm = Assembler::new();
        let label = asm.label();
        asm.jump(label);
        for _ in 0..=i16::MAX as usize {
            asm.exit();
        }
        asm.bind(label);
        assert_eq!(asm.finish(), Err(AssemblyError::TooFar { at: 0 }));

        let mut asm = Assembler::new();
        let label = asm.label();
        asm.bind(label);
        asm.exit();
        asm.bind(label);
        assert_eq!(asm.finish(), Err(AssemblyError::BoundTwice { at: 1 }));
    }
}
