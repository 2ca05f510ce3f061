//! Which network a job trains: the linear head on features that vehicles train, or a small network that is trained whole
//! in simulations, so that published tables can be repeated through the same rounds.

use crate::schema::{Schema, SchemaError, TensorSpec};

/// What is trained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Network {
    /// A linear head on the backbone's features.
    #[default]
    LinearHead,
    /// Two hidden layers of 200 with `ReLU`: "2NN" of McMahan et al. 2017.
    TwoNn,
    /// Two 5x5 convolutions (10 and 20 channels) with 2x2 pooling, then 50 hidden units, on pictures of 28x28: the
    /// network of 21,840 parameters (at 10 classes) of Liu et al. 2020.
    LeNet,
}

impl Network {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::LinearHead, Self::TwoNn, Self::LeNet];

    /// Its name in `job.toml` and on the wire.
    pub fn label(self) -> &'static str {
        match self {
            Self::LinearHead => "linear-head",
            Self::TwoNn => "two-nn",
            Self::LeNet => "lenet",
        }
    }

    /// The network of this name.
    pub fn parse(label: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|network| network.label() == label)
    }

    /// Its tensors, in the order of the flat slice. Dense weights are `[inputs, outputs]` for the head and
    /// `[outputs, inputs]` else, convolutions `[out, in, height, width]`.
    ///
    /// - `features`: values of one example; `LeNet` takes 784.
    ///
    /// # Errors
    /// [`SchemaError`] if it is too large.
    pub fn schema(self, features: usize, classes: usize) -> Result<Schema, SchemaError> {
        let of = |tensors: &[(&str, &[usize])]| {
            let spec = |(name, shape): &(&str, &[usize])| TensorSpec {
                name: (*name).to_owned(),
                shape: shape.to_vec(),
            };
            Schema::new(tensors.iter().map(spec).collect())
        };
        match self {
            Self::LinearHead => Schema::linear_head(features, classes),
            Self::TwoNn => of(&[
                ("dense1-weight", &[200, features]),
                ("dense1-bias", &[200]),
                ("dense2-weight", &[200, 200]),
                ("dense2-bias", &[200]),
                ("dense3-weight", &[classes, 200]),
                ("dense3-bias", &[classes]),
            ]),
            Self::LeNet => of(&[
                ("conv1-weight", &[10, 1, 5, 5]),
                ("conv1-bias", &[10]),
                ("conv2-weight", &[20, 10, 5, 5]),
                ("conv2-bias", &[20]),
                ("dense1-weight", &[50, 320]),
                ("dense1-bias", &[50]),
                ("dense2-weight", &[classes, 50]),
                ("dense2-bias", &[classes]),
            ]),
        }
    }

    /// Whether it takes examples of so many values.
    pub fn takes(self, features: usize) -> bool {
        self != Self::LeNet || features == 28 * 28
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_papers() {
        let size = |network: Network, features, classes| {
            network
                .schema(features, classes)
                .expect("a schema")
                .num_parameters()
        };
        assert_eq!(size(Network::LinearHead, 480, 3), 1443);
        assert_eq!(size(Network::TwoNn, 784, 10), 199_210);
        assert_eq!(size(Network::LeNet, 784, 10), 21_840);
        assert!(Network::LeNet.takes(784) && !Network::LeNet.takes(783));
    }

    #[test]
    fn each_is_found_by_its_name() {
        for network in Network::ALL {
            assert_eq!(Network::parse(network.label()), Some(network));
        }
        assert_eq!(Network::parse("resnet"), None);
    }
}
