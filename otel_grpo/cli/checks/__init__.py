"""What `doctor` looks at, one module for each topic."""
