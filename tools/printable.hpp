// SPDX-License-Identifier: Apache-2.0
// No text from outside reaches a terminal raw: the name of a program or a file, or a broker's sentence, may hold escape
// sequences that rewrite the screen. Everything that the tool prints for people goes through here.
#pragma once

#include <string>
#include <string_view>

#include "tools/host/width.hpp"

namespace shmb::tools {

// ASCII stays, except control bytes, which become \xNN. Valid UTF-8 stays, except the C1 controls, and marks that
// change the direction of text or have no width (U+200B to U+200F, U+202A to U+202E, U+2060 to U+206F, U+FEFF).
std::string printable(std::string_view text);
using host::columns;  // of what printable gives

// From then on every character beyond ASCII becomes \xNN, for a terminal whose locale is not UTF-8. Call it before
// threads start.
void print_ascii_alone(bool alone);

}  // namespace shmb::tools
