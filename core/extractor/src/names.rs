//! Names of a network's tensors: torchvision's, so that a quantized file lines up with the one it was made of.

use crate::topology::Block;

/// The first convolution.
pub(crate) const STEM: &str = "features.0.0";
/// The layer on the pooled features.
pub(crate) const POOLED: &str = "classifier.0";

/// The last convolution of a network with so many blocks.
pub(crate) fn last(blocks: usize) -> String {
    format!("features.{}.0", blocks + 1)
}

/// What stands before the last part of the names of one block's tensors.
#[derive(Debug)]
pub(crate) struct BlockNames {
    pub(crate) expand: Option<String>,
    pub(crate) depthwise: String,
    pub(crate) gate: Option<String>,
    pub(crate) project: String,
}

impl BlockNames {
    /// Parts are counted from 0, and one that the block lacks takes no number.
    pub(crate) fn new(index: usize, block: &Block, expand: bool) -> Self {
        let mut part = 0;
        let mut next = |convolution: bool| {
            part += 1;
            let end = if convolution { ".0" } else { "" };
            format!("features.{}.block.{}{end}", index + 1, part - 1)
        };
        Self {
            expand: expand.then(|| next(true)),
            depthwise: next(true),
            gate: block.squeeze_excite.then(|| next(false)),
            project: next(true),
        }
    }
}
