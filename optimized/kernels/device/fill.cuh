#pragma once

// Whether everything is there. Of what is cut into runs of eight: each is whole, and lies on 16 bytes in x. Of a row in
// the registers of its threads: it fills them to the last vector.
struct Whole { static constexpr bool kWhole = true; };
struct Ragged { static constexpr bool kWhole = false; };
