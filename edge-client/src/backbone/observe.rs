//! What passes through a network while it computes, for whoever wants to know the range of it.

use candle_core::{Device, Result, Tensor};

use super::BackboneError;
use super::network::{Network, each_picture};
use super::ops::Gate;
use crate::pictures::Picture;

/// An activation on the way from a picture to its features. Blocks are counted from 0.
///
/// Tensors are `[n, height, width, channels]` where nothing else is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Place {
    /// The normalised picture.
    Input,
    /// The first convolution's output.
    Stem,
    /// Behind the expansion and its activation.
    Expand(usize),
    /// Behind the depthwise convolution and its activation, before the gate.
    Depthwise(usize),
    /// Each channel's mean, `[n, channels]`.
    SqueezeMean(usize),
    /// Behind the squeeze and its `ReLU`, `[n, squeezed]`.
    SqueezeHidden(usize),
    /// Each channel's factor, `[n, channels]`.
    Gate(usize),
    /// The depthwise convolution's output times the gate.
    Gated(usize),
    /// The block's output, the residual included.
    Block(usize),
    /// Behind the last convolution and its hard-swish, before the mean.
    Last,
    /// The mean over the picture, `[n, channels]`.
    Pooled,
    /// What comes out, `[n, features]`: behind one more layer, where the network has one.
    Features,
}

/// Sees each activation as it is computed.
pub(super) type Tap<'a> = Option<&'a mut dyn FnMut(Place, &Tensor)>;

pub(super) fn tell(tap: &mut Tap, place: Place, x: &Tensor) {
    if let Some(tap) = tap {
        tap(place, x);
    }
}

impl Network {
    /// [`Self::forward`] while `tap` sees every activation, in the order in which they are computed.
    pub(crate) fn forward_observed(
        &self,
        x: &Tensor,
        tap: &mut dyn FnMut(Place, &Tensor),
    ) -> Result<Tensor> {
        tap(Place::Input, x);
        self.features_with(x, &mut Some(tap))
    }

    /// [`Self::forward_observed`] on one batch of pictures of one size. Nothing is seen where there are none.
    pub(crate) fn observe(
        &self,
        pictures: &[Picture],
        tap: &mut dyn FnMut(Place, &Tensor),
    ) -> std::result::Result<(), BackboneError> {
        if let Some(pictures) = super::bytes(pictures)? {
            self.forward_observed(&self.input(&pictures)?, tap)?;
        }
        Ok(())
    }
}

/// Computes the way to the gate once more, to show it.
pub(super) fn observe_gate(
    gate: &Gate,
    x: &Tensor,
    index: usize,
    tap: &mut dyn FnMut(Place, &Tensor),
) -> Result<()> {
    let n = x.dims4()?.0;
    let (mut mean, mut hidden, mut factor) = (Vec::new(), Vec::new(), Vec::new());
    each_picture(x, |picture| {
        let steps = gate.steps(picture);
        mean.extend(steps.mean);
        hidden.extend(steps.hidden);
        factor.extend(steps.gate);
    })?;
    for (place, values) in [
        (Place::SqueezeMean(index), mean),
        (Place::SqueezeHidden(index), hidden),
        (Place::Gate(index), factor),
    ] {
        let width = values.len() / n.max(1);
        tap(place, &Tensor::from_vec(values, (n, width), &Device::Cpu)?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::backbone::read_float;
    use crate::pictures::InputSize;

    fn network(name: &str) -> Network {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
        Network::new(read_float(&folder.join(name)).unwrap())
    }

    fn pictures(count: u8) -> Vec<Picture> {
        let (height, width) = (33, 20);
        let bytes = |seed: u8| {
            let steps = (0..height * width * 3).map(|i| u8::try_from(i * 7 % 251).unwrap());
            steps.map(|step| step.wrapping_mul(seed)).collect()
        };
        (1..=count)
            .map(|seed| Picture::new(InputSize { height, width }, bytes(seed)).unwrap())
            .collect()
    }

    fn flat(x: &Tensor) -> Vec<f32> {
        x.flatten_all().unwrap().to_vec1().unwrap()
    }

    #[test]
    fn places_come_in_order_and_change_nothing() {
        let network = network("torchvision_small.safetensors");
        let pictures = pictures(3);
        let mut seen: Vec<(Place, Tensor)> = Vec::new();
        let mut tap = |place, x: &Tensor| seen.push((place, x.clone()));
        network.observe(&pictures, &mut tap).unwrap();

        let places: Vec<Place> = seen.iter().map(|(place, _)| *place).collect();
        // The first block has squeeze-excite and no expansion, the second is the other way round.
        let first = [
            Place::Input,
            Place::Stem,
            Place::Depthwise(0),
            Place::SqueezeMean(0),
            Place::SqueezeHidden(0),
            Place::Gate(0),
            Place::Gated(0),
            Place::Block(0),
            Place::Expand(1),
            Place::Depthwise(1),
            Place::Block(1),
        ];
        assert_eq!(places[..first.len()], first);
        let last = [
            Place::Block(10),
            Place::Last,
            Place::Pooled,
            Place::Features,
        ];
        assert_eq!(places[places.len() - 4..], last);
        assert!(seen.iter().all(|(_, x)| x.dims()[0] == 3));

        let bytes = crate::backbone::bytes(&pictures).unwrap().unwrap();
        let input = network.input(&bytes).unwrap();
        let features = network.forward(&input).unwrap();
        let find = |wanted| &seen.iter().find(|(place, _)| *place == wanted).unwrap().1;
        assert_eq!(flat(&features), flat(find(Place::Features)));
        assert_eq!(flat(&input), flat(find(Place::Input)));
        assert_eq!(features.dims(), [3, network.features()]);
        let returned = network.forward_observed(&input, &mut |_, _| {}).unwrap();
        assert_eq!(flat(&returned), flat(&features));
    }

    #[test]
    fn gated_is_depthwise_times_gate() {
        let network = network("torchvision_large.safetensors");
        let mut seen = std::collections::BTreeMap::new();
        let mut tap = |place, x: &Tensor| {
            seen.insert(place, x.clone());
        };
        network.observe(&pictures(2), &mut tap).unwrap();
        let places = seen.keys().filter(|place| matches!(place, Place::Gate(_)));
        let places: Vec<Place> = places.copied().collect();
        assert_eq!(places, [3, 4, 5, 10, 11, 12, 13, 14].map(Place::Gate));
        for index in [3, 14] {
            let depthwise = &seen[&Place::Depthwise(index)];
            let (n, height, width, channels) = depthwise.dims4().unwrap();
            let (depthwise, gate) = (flat(depthwise), flat(&seen[&Place::Gate(index)]));
            let gated = flat(&seen[&Place::Gated(index)]);
            let mean = flat(&seen[&Place::SqueezeMean(index)]);
            assert_eq!((gate.len(), mean.len()), (n * channels, n * channels));
            for (at, gated) in gated.iter().enumerate() {
                let (picture, channel) = (at / (height * width * channels), at % channels);
                let factor = gate[picture * channels + channel];
                assert!((gated - depthwise[at] * factor).abs() < 1e-6);
            }
        }
        assert!(network.observe(&[], &mut |_, _| unreachable!()).is_ok());
    }
}
