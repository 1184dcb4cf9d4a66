//! Models in several files: `NAME-00001-of-00003.gguf` and so on.
//!
//! Every part says `split.no` (from 0), `split.count` and `split.tensors.count` (of all parts together). The first has
//! the model's metadata and may have no tensors; the others have tensors only.

use std::path::{Path, PathBuf};

use super::{GgufError, Metadata};

/// The digits of a part's number in its name.
const DIGITS: usize = 5;
/// What five digits can count.
const PARTS_MAX: u32 = 99_999;

/// What the first part says about the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Split {
    parts: usize,
    /// Tensors of all parts; files of early writers are without.
    tensors: Option<u64>,
}

impl Split {
    /// `None` for a model in one file.
    pub(super) fn read(metadata: &Metadata<'_>) -> Result<Option<Self>, GgufError> {
        let Some(parts @ 2..) = metadata.u32("split.count")? else { return Ok(None) };
        if parts > PARTS_MAX {
            let field = "split.count".to_owned();
            return Err(GgufError::Limit { field, value: parts.into(), limit: PARTS_MAX.into() });
        }
        Ok(Some(Self { parts: parts as usize, tensors: metadata.u64("split.tensors.count")? }))
    }

    /// The files of all parts, beside `first`, which must be named as the first part and be it.
    pub(super) fn paths(&self, first: &Path) -> Result<Vec<PathBuf>, GgufError> {
        let name = first.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let own = part_of(&name).filter(|part| part.number == 1 && part.count == self.parts);
        let Some(own) = own else {
            let expected = part_name("NAME", 1, self.parts);
            return Err(GgufError::SplitName { name, parts: self.parts, expected });
        };
        let path = |number| first.with_file_name(part_name(own.stem, number, self.parts));
        let paths: Vec<PathBuf> = (1..=self.parts).map(path).collect();
        let missing: Vec<&PathBuf> = paths.iter().filter(|path| !path.exists()).collect();
        match missing.as_slice() {
            [] => Ok(paths),
            [one, ..] => Err(GgufError::SplitMissing {
                parts: self.parts,
                missing: missing.len(),
                name: one.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
            }),
        }
    }

    /// Whether the file named as part `number` (from 0) is that part of a model of as many.
    pub(super) fn check_part(&self, metadata: &Metadata<'_>, number: usize) -> Result<(), GgufError> {
        for (key, expected) in [("split.count", self.parts), ("split.no", number)] {
            let found = metadata.u32(key)?.ok_or_else(|| GgufError::MissingKey { key: key.to_owned() })?;
            if found as usize != expected {
                return Err(GgufError::SplitPart { key, found, expected });
            }
        }
        Ok(())
    }

    pub(super) fn check_tensors(&self, found: usize) -> Result<(), GgufError> {
        match self.tensors {
            Some(expected) if expected != found as u64 => Err(GgufError::SplitTensors { found, expected }),
            _ => Ok(()),
        }
    }
}

/// A file name of one part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartName<'a> {
    pub stem: &'a str,
    /// From 1.
    pub number: usize,
    pub count: usize,
}

/// What a file name says of its place in a split model; `None` for any other name.
pub fn part_of(name: &str) -> Option<PartName<'_>> {
    let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| (text.len() == DIGITS).then(|| text.parse::<usize>().ok()).flatten();
    let (number, count) = (digits(number)?, digits(count)?);
    (1..=count).contains(&number).then_some(PartName { stem, number, count })
}

/// The file name of part `number`, from 1.
pub fn part_name(stem: &str, number: usize, count: usize) -> String {
    format!("{stem}-{number:0DIGITS$}-of-{count:0DIGITS$}.gguf")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::writer::{Value, Writer, tiny};
    use super::super::{Gguf, ModelError};
    use super::*;

    #[test]
    fn names_are_read_and_written() {
        let part = PartName { stem: "a-b", number: 2, count: 12 };
        assert_eq!(part_of("a-b-00002-of-00012.gguf"), Some(part));
        assert_eq!(part_name("a-b", 2, 12), "a-b-00002-of-00012.gguf");
        for other in ["a.gguf", "a-00002-of-00001.gguf", "a-00000-of-00001.gguf", "a-2-of-3.gguf", "a-00001-of-00003"] {
            assert_eq!(part_of(other), None, "{other}");
        }
    }

    /// The tiny model in three parts: metadata alone, then half of the tensors each.
    fn parts() -> [Writer; 3] {
        let whole = tiny("llama");
        let mut parts = [Writer::new(), Writer::new(), Writer::new()];
        parts[0].metadata.clone_from(&whole.metadata);
        for (i, tensor) in whole.tensors.iter().enumerate() {
            parts[1 + i % 2].tensor(&tensor.name, &tensor.dims, 0.0);
        }
        for (number, part) in parts.iter_mut().enumerate() {
            part.set("split.no", Value::U32(number as u32)).set("split.count", Value::U32(3));
            part.set("split.tensors.count", Value::U32(whole.tensors.len() as u32));
        }
        parts
    }

    /// Opens the file of part `opened` after `change`.
    fn open(opened: usize, change: impl FnOnce(&mut [Writer; 3], &mut Vec<usize>)) -> Result<Gguf, ModelError> {
        let (mut parts, mut present) = (parts(), vec![0, 1, 2]);
        change(&mut parts, &mut present);
        let folder = tempfile::tempdir().expect("a folder");
        for number in present {
            let path = folder.path().join(part_name("m", number + 1, 3));
            fs::write(path, parts[number].bytes()).expect("a file");
        }
        Gguf::open(&folder.path().join(part_name("m", opened + 1, 3)))
    }

    #[test]
    fn parts_make_one_model() {
        let gguf = open(0, |_, _| {}).expect("a whole model");
        let spec = crate::families::from_gguf(&gguf).expect("every tensor is found");
        let whole = crate::families::from_gguf(&Gguf::from_bytes(tiny("llama").bytes()).expect("a file")).expect("one");
        let rows = |spec: &backend::ops::ModelSpec| -> Vec<(String, Vec<u8>)> {
            spec.weights.iter().map(|w| (w.name.to_string(), w.row(w.rows - 1).to_vec())).collect()
        };
        assert_eq!(rows(&spec), rows(&whole));
    }

    fn check_refused(opened: usize, change: impl FnOnce(&mut [Writer; 3], &mut Vec<usize>), expected: &str) {
        let error = open(opened, change).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}\nexpected {expected}");
    }

    #[test]
    fn wrong_parts_are_named() {
        check_refused(
            0,
            |_, present| present.retain(|part| *part != 1),
            "`m-00002-of-00003.gguf` is missing: the model has 3 parts, 1 of them not beside this one",
        );
        check_refused(
            1,
            |_, _| {},
            "`m-00002-of-00003.gguf` is one of 3 parts; give the first, NAME-00001-of-00003.gguf",
        );
        check_refused(
            0,
            |parts, _| {
                parts[0].set("split.count", Value::U32(4));
            },
            "is one of 4 parts; give the first, NAME-00001-of-00004.gguf",
        );
        check_refused(
            0,
            |parts, _| {
                parts[2].set("split.no", Value::U32(1));
            },
            "m-00003-of-00003.gguf: `split.no` is 1, its name needs 2",
        );
        check_refused(
            0,
            |parts, _| {
                parts[1].set("split.count", Value::U32(2));
            },
            "m-00002-of-00003.gguf: `split.count` is 2, its name needs 3",
        );
        check_refused(
            0,
            |parts, _| {
                let again = parts[1].tensors[0].clone();
                parts[2].tensor(&again.name, &again.dims, 0.0);
            },
            "tensor `token_embd.weight` comes twice",
        );
        check_refused(
            0,
            |parts, _| {
                parts[2].tensors.pop();
            },
            "the parts have 10 tensors together, the first part says 11",
        );
        check_refused(
            0,
            |parts, _| {
                parts[0].set("split.count", Value::U32(1 << 20));
            },
            "split.count is 1048576, the limit is 99999",
        );
    }
}
