// Does nothing: its occupancy tells how many clusters the chip holds.
template <int>
__global__ void probe() {}
