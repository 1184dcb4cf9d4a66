//! Answers by their id, in an embedded database: a file, or memory. When the size limit is reached the oldest go.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use redb::backends::InMemoryBackend;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Records as JSON, by id.
const RECORDS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("responses");
/// Ids in the order in which they came.
const AGES: TableDefinition<'_, u64, &str> = TableDefinition::new("ages");
/// One row: the bytes of all records.
const TOTAL: TableDefinition<'_, (), u64> = TableDefinition::new("total");

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("the store of responses `{path}` cannot be opened: {cause}; is another server using it?")]
    Open { path: PathBuf, cause: String },
    #[error("the store of responses failed: {0}")]
    Failed(String),
    #[error("a response of {bytes} bytes is larger than the whole store, {limit} bytes; raise responses_mib_max")]
    TooLarge { bytes: u64, limit: u64 },
}

fn failed(error: impl std::fmt::Display) -> StoreError {
    StoreError::Failed(error.to_string())
}

/// One kept answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Whose key it was; `None` without keys. Nobody else can read it.
    pub tenant: Option<String>,
    /// The items of its own turn.
    pub input: Vec<Value>,
    pub response: Value,
    /// Its place in the order of coming; set by the store.
    #[serde(default)]
    age: u64,
}

impl Record {
    pub fn new(tenant: Option<String>, input: Vec<Value>, response: Value) -> Self {
        Self { tenant, input, response, age: 0 }
    }

    pub fn previous(&self) -> Option<&str> {
        self.response["previous_response_id"].as_str()
    }

    pub fn output(&self) -> &[Value] {
        self.response["output"].as_array().map(Vec::as_slice).unwrap_or_default()
    }
}

/// All calls block for a moment: they belong on the blocking pool.
pub struct Store {
    database: Database,
    bytes_max: u64,
}

impl Store {
    /// Opens or makes the file; `None` keeps everything in memory.
    pub fn open(path: Option<&Path>, bytes_max: u64) -> Result<Self, StoreError> {
        let database = match path {
            None => Database::builder().create_with_backend(InMemoryBackend::new()).map_err(failed)?,
            Some(path) => Database::create(path)
                .map_err(|cause| StoreError::Open { path: path.to_owned(), cause: cause.to_string() })?,
        };
        let store = Self { database, bytes_max };
        // A lower limit than last time takes effect at once; the tables exist from here on.
        let change = store.begin()?;
        store.evict(&change, 0)?;
        change.commit().map_err(failed)?;
        Ok(store)
    }

    pub fn put(&self, id: &str, mut record: Record) -> Result<(), StoreError> {
        let change = self.begin()?;
        {
            let mut ages = change.open_table(AGES).map_err(failed)?;
            let age = ages.last().map_err(failed)?.map_or(0, |(age, _)| age.value() + 1);
            record.age = age;
            ages.insert(age, id).map_err(failed)?;
        }
        let value = serde_json::to_vec(&record).map_err(failed)?;
        let bytes = value.len() as u64;
        if bytes > self.bytes_max {
            return Err(StoreError::TooLarge { bytes, limit: self.bytes_max });
        }
        let kept = self.evict(&change, bytes)?;
        change.open_table(RECORDS).map_err(failed)?.insert(id, value.as_slice()).map_err(failed)?;
        change.open_table(TOTAL).map_err(failed)?.insert((), kept + bytes).map_err(failed)?;
        change.commit().map_err(failed)
    }

    pub fn get(&self, id: &str) -> Result<Option<Record>, StoreError> {
        let view = self.database.begin_read().map_err(failed)?;
        let records = view.open_table(RECORDS).map_err(failed)?;
        let value = records.get(id).map_err(failed)?;
        value.map(|value| serde_json::from_slice(value.value()).map_err(failed)).transpose()
    }

    /// Whether there was one.
    pub fn remove(&self, id: &str) -> Result<bool, StoreError> {
        let change = self.begin()?;
        let removed = remove(&change, id)?;
        change.commit().map_err(failed)?;
        Ok(removed)
    }

    fn begin(&self) -> Result<WriteTransaction, StoreError> {
        self.database.begin_write().map_err(failed)
    }

    /// Removes the oldest until `more` bytes fit; answers the bytes that are left.
    fn evict(&self, change: &WriteTransaction, more: u64) -> Result<u64, StoreError> {
        change.open_table(RECORDS).map_err(failed)?;
        loop {
            let total = total(change)?;
            if total + more <= self.bytes_max {
                return Ok(total);
            }
            let oldest = {
                let ages = change.open_table(AGES).map_err(failed)?;
                let first = ages.first().map_err(failed)?;
                first.map(|(_, id)| id.value().to_owned())
            };
            match oldest {
                Some(id) => remove(change, &id)?,
                None => return Ok(total),
            };
        }
    }
}

fn total(change: &WriteTransaction) -> Result<u64, StoreError> {
    let table = change.open_table(TOTAL).map_err(failed)?;
    let row = table.get(()).map_err(failed)?;
    Ok(row.map_or(0, |row| row.value()))
}

fn remove(change: &WriteTransaction, id: &str) -> Result<bool, StoreError> {
    let removed = {
        let mut records = change.open_table(RECORDS).map_err(failed)?;
        let value = records.remove(id).map_err(failed)?;
        value.map(|value| value.value().to_vec())
    };
    let Some(value) = removed else { return Ok(false) };
    let record: Record = serde_json::from_slice(&value).map_err(failed)?;
    change.open_table(AGES).map_err(failed)?.remove(record.age).map_err(failed)?;
    let left = total(change)?.saturating_sub(value.len() as u64);
    change.open_table(TOTAL).map_err(failed)?.insert((), left).map_err(failed)?;
    Ok(true)
}

/// What is kept of one answer beside itself.
pub struct Keeper {
    pub store: Arc<Store>,
    pub tenant: Option<String>,
    pub input: Vec<Value>,
}

impl Keeper {
    /// An answer that cannot be kept is still an answer: the failure is the operator's to read.
    pub async fn keep(self, response: Value) {
        let id = response["id"].as_str().unwrap_or_default().to_owned();
        let record = Record::new(self.tenant, self.input, response);
        let store = self.store;
        let kept = tokio::task::spawn_blocking(move || store.put(&id, record)).await;
        match kept {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "a response was not kept"),
            Err(error) => tracing::error!(%error, "a response was not kept"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn record(text: &str) -> Record {
        Record::new(None, vec![json!({"role": "user", "content": text})], json!({"output": []}))
    }

    fn held(store: &Store, ids: &[&str]) -> Vec<bool> {
        ids.iter().map(|id| store.get(id).unwrap().is_some()).collect()
    }

    #[test]
    fn what_was_put_comes_back_until_it_is_removed() {
        let store = Store::open(None, 1 << 20).unwrap();
        store.put("a", record("x")).unwrap();
        assert_eq!(store.get("a").unwrap().map(|record| record.input), Some(record("x").input));
        assert_eq!((store.remove("a").unwrap(), store.remove("a").unwrap()), (true, false));
        assert_eq!(held(&store, &["a"]), [false]);
    }

    /// The oldest make room, and only as many as must.
    #[test]
    fn the_oldest_go_first() {
        let bytes = serde_json::to_vec(&record("x")).unwrap().len() as u64;
        let store = Store::open(None, 3 * bytes).unwrap();
        for id in ["a", "b", "c", "d"] {
            store.put(id, record("x")).unwrap();
        }
        assert_eq!(held(&store, &["a", "b", "c", "d"]), [false, true, true, true]);
        store.remove("c").unwrap();
        store.put("e", record("x")).unwrap();
        assert_eq!(held(&store, &["b", "d", "e"]), [true, true, true]);
        let large = record(&"y".repeat(1000));
        assert!(matches!(store.put("f", large), Err(StoreError::TooLarge { .. })));
        assert_eq!(held(&store, &["b", "d", "e"]), [true, true, true], "what does not fit costs nobody a place");
    }

    #[test]
    fn a_file_outlives_its_server_and_has_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("responses.redb");
        let store = Store::open(Some(&path), 1 << 20).unwrap();
        store.put("a", record("x")).unwrap();
        assert!(matches!(Store::open(Some(&path), 1 << 20), Err(StoreError::Open { .. })));
        drop(store);
        assert_eq!(held(&Store::open(Some(&path), 1 << 20).unwrap(), &["a"]), [true]);
        assert_eq!(held(&Store::open(Some(&path), 1).unwrap(), &["a"]), [false], "a lower limit takes effect");
    }
}
