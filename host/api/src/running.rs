//! The requests that are being answered, by the names their clients know, so that they can be called off.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use futures::stream::AbortHandle;

/// All requests whose events have not ended. Their number is bounded by admission.
#[derive(Debug, Default)]
pub struct Running(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
struct Table {
    next: u64,
    rows: HashMap<u64, Row>,
}

#[derive(Debug)]
struct Row {
    names: [Arc<str>; 2],
    tenant: Arc<str>,
    handle: AbortHandle,
}

/// A request's row; dropping it removes the row.
#[derive(Debug)]
pub struct Place {
    table: Arc<Mutex<Table>>,
    key: u64,
}

impl Running {
    pub fn enter(&self, names: [&Arc<str>; 2], tenant: &Arc<str>, handle: AbortHandle) -> Place {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = table.next;
        table.next += 1;
        table.rows.insert(key, Row { names: names.map(Arc::clone), tenant: Arc::clone(tenant), handle });
        Place { table: Arc::clone(&self.0), key }
    }

    /// Aborts every request of that name, of one tenant or of all; answers how many there were.
    pub fn abort(&self, name: &str, tenant: Option<&str>) -> usize {
        let table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let rows = table.rows.values().filter(|row| {
            row.names.iter().any(|own| &**own == name) && tenant.is_none_or(|tenant| *row.tenant == *tenant)
        });
        rows.map(|row| row.handle.abort()).count()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.table.lock().unwrap_or_else(PoisonError::into_inner).rows.remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name reaches all its requests, but none of another tenant, and none that has ended.
    #[test]
    fn names_and_tenants() {
        let running = Running::default();
        let place = |name: &str, tenant: &str| {
            let (handle, _) = AbortHandle::new_pair();
            running.enter([&name.into(), &"answer".into()], &tenant.into(), handle)
        };
        let (_a, b, _c) = (place("x", "one"), place("x", "two"), place("y", "one"));
        assert_eq!(running.abort("x", None), 2);
        assert_eq!(running.abort("x", Some("one")), 1);
        assert_eq!(running.abort("answer", Some("one")), 2);
        drop(b);
        assert_eq!(running.abort("x", Some("two")), 0);
    }
}
