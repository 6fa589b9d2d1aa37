// SPDX-License-Identifier: Apache-2.0
// The names that sentences use. Sentences of the library name functions, flags and fields as the C headers do. A face
// that calls them otherwise has them replaced before its caller reads the sentence: no sentence is written twice.
// Guarantee: a sentence without such names is left as it is, and a word that only begins like one is none.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace shmb::client {

enum class Face : std::uint32_t { c = 0, cxx = 1, shell = 2 };

struct Word {
  std::string_view c, cxx, shell;  // shell: empty where no command can lead to the sentence
};

// Sorted by `c`. tests/client/words_test.py refuses a sentence that names something that is not here.
std::string in_words_of(Face face, std::string_view sentence);
// Cheap, and allocates nothing: whether anything in it might be replaced.
inline bool names_something(std::string_view sentence) noexcept {
  return sentence.find("shmb_") != sentence.npos || sentence.find("SHMB_") != sentence.npos;
}
const Word* find_word(std::string_view name) noexcept;

}  // namespace shmb::client
