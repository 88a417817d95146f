#![doc = include_str!("../README.md")]

mod animator;
mod draw;

pub use animator::Animator;
