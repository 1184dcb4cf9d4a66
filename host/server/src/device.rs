//! Where a model runs.

use std::fmt;

use anyhow::bail;

/// `cpu`, or one CUDA card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    Cpu,
    /// The card's number, as the driver counts.
    Cuda(usize),
}

impl Device {
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        match text.split_once(':') {
            None if text == "cpu" => Ok(Self::Cpu),
            None if text == "cuda" => Ok(Self::Cuda(0)),
            Some(("cuda", numbers)) if numbers.contains(',') => {
                bail!("device `{text}`: an engine runs on one card; start an engine per card")
            }
            Some(("cuda", number)) => match number.parse() {
                Ok(number) => Ok(Self::Cuda(number)),
                Err(_) => bail!("device `{text}`: `{number}` is not the number of a card, as in cuda:0"),
            },
            _ => bail!("device `{text}` is not one of cpu, cuda, cuda:N"),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(number) => write!(f, "cuda:{number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_words() {
        for (text, device) in [("cpu", Device::Cpu), ("cuda", Device::Cuda(0)), ("cuda:3", Device::Cuda(3))] {
            assert_eq!(Device::parse(text).unwrap(), device);
        }
        for (text, needle) in
            [("tpu", "not one of cpu"), ("cuda:0,1", "one card"), ("cuda:x", "`x` is not"), ("cpu:0", "not one of")]
        {
            let error = Device::parse(text).unwrap_err().to_string();
            assert!(error.contains(needle), "{text}: {error}");
        }
    }
}
