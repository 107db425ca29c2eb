"""Config to Envoy's bootstrap; `envoy_ext.bootstrap.render` is the door.

This module imports nothing: Envoy's typed messages take a second or two to load.
"""
