#pragma once
#include "tensors.h"
template <bool Across>
inline void store_matrices(void* row, const u32 (&pairs)[4]) {
  unfenced[current].push_back(shared_address(row));
  store_matrices_of_warp(row, pairs, Across);
}
