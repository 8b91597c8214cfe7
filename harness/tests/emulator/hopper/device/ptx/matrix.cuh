#pragma once
#include "tensors.h"
template <bool Across>
inline void load_matrices(const void* row, u32 (&pairs)[4]) { load_matrices_of_warp(row, pairs, Across); }
template <bool Across>
inline void store_matrices(void* row, const u32 (&pairs)[4]) {
  unfenced[current].push_back(shared_address(row));
  store_matrices_of_warp(row, pairs, Across);
}
