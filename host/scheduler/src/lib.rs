//! The pure core: queues, pages, prefix cache and step planning.
