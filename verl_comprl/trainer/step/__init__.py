"""The batch that an actor step trains on: its prompt groups in TransferQueue, weights, order and metrics."""
