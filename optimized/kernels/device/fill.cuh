#pragma once

// Whether everything is there: every run of eight is whole and lies on 16 bytes in x, a row fills its threads to the
// last vector; or something is not.
struct Whole { static constexpr bool kWhole = true; };
struct Ragged { static constexpr bool kWhole = false; };
