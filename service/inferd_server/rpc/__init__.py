"""WIRE: the only room that imports grpc and protobuf."""
