//! Model files to a spec, named weights and a list of block operations.
