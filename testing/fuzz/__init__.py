"""A campaign of generated inputs against the product; docs/testing.md describes it."""
