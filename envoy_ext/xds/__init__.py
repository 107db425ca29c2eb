"""What Envoy is told over xDS, and how one stream of it goes: pure, protobuf at most, no IO and no clock."""
