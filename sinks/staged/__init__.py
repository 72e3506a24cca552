"""What stores without lasting transactions share: tasks stage slices, the driver applies them after its decision."""
