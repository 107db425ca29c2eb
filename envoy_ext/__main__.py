"""`python -m envoy_ext` is the `envoy-ext` command."""

from envoy_ext.cli import main

if __name__ == "__main__":
    main()
