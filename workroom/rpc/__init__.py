"""What every Workroom server and client shares about gRPC; knows no service and no domain."""
