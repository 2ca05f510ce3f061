//! MobileNetV3 as a feature extractor in int8.
//!
//! - [`topology`]: the two networks, apart from widths and numbers.
//! - [`float`]: a pretrained network in f32, as the vehicle's backbone and the quantizer read it.
//! - [`quantized`]: the same in int8.
//! - [`check`]: what must hold of such a network before a kernel sees it.
//! - [`mod@file`]: its file.
//! - [`layer`], [`kernels`]: its convolutions, laid out for an instruction set.
//! - [`engine`]: runs it.
//! - [`mod@reference`]: what the engine computes, written down plainly.
//! - [`random`]: networks of random numbers.

pub mod check;
mod dense;
pub mod engine;
pub mod file;
pub mod float;
pub mod kernels;
pub mod layer;
mod names;
pub mod quantized;
pub mod random;
pub mod reference;
pub mod topology;
