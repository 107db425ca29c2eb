"""Builders and fakes that speak the project's vocabulary, shared by the tests."""
