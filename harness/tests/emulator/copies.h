// Copies happen when they are asked for, or as late as they may: both show what is not waited for.
#pragma once
#include <deque>

#include "device/base.cuh"

// What copies may read.
inline std::vector<std::pair<const char*, const char*>> readable;

struct Copy {
  char* to;
  const char* from;
  int size, bytes;
  void run() const {
    if (bytes < 0 || bytes > size) die("a copy of a wrong size");
    if (uintptr_t(to) % size || (bytes && uintptr_t(from) % size)) die("a copy is misaligned");
    const auto within = [&](auto& memory) { return memory.first <= from && from + bytes <= memory.second; };
    if (bytes && std::none_of(readable.begin(), readable.end(), within)) die("a copy reads what is no operand");
    memset(to, 0, size);
    if (bytes) memcpy(to, from, bytes);
  }
};
inline bool copies_are_late = true;
inline std::vector<std::deque<std::vector<Copy>>> copy_groups(kContexts);
inline std::vector<std::vector<Copy>> copies_asked(kContexts);

inline void copy_async(void* to, const void* from, int size, int bytes) {
  const Copy copy{static_cast<char*>(to), static_cast<const char*>(from), size, bytes};
  if (copies_are_late) copies_asked[current].push_back(copy);
  else copy.run();
}
inline void copy_async_16(void* to, const void* from, int bytes) { copy_async(to, from, 16, bytes); }
inline void copy_async_16_by_l1(void* to, const void* from, int bytes) { copy_async(to, from, 16, bytes); }
inline void copy_async_16_of_stream(void* to, const void* from, int bytes) { copy_async(to, from, 16, bytes); }
inline void copy_async_4(void* to, const void* from, int bytes) { copy_async(to, from, 4, bytes); }
inline void copy_async_commit() {
  copy_groups[current].push_back(copies_asked[current]);
  copies_asked[current].clear();
}
template <int Pending>
inline void copy_async_wait() {
  for (auto& mine = copy_groups[current]; int(mine.size()) > Pending; mine.pop_front())
    for (const Copy& copy : mine.front()) copy.run();
}
