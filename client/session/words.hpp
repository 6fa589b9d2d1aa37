// SPDX-License-Identifier: Apache-2.0
// The names in sentences. Sentences of the library name functions, flags and fields as the C headers do. An API with
// other names has them replaced before its caller reads the sentence, so no sentence is written twice. A sentence
// without such names stays as it is, and a word that only begins like a name is none.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace shmb::client {

enum class Face : std::uint32_t { c = 0, cxx = 1, shell = 2, python = 3 };

struct Word {
  std::string_view c, cxx;
  std::string_view shell, python;  // empty where no command, or no function of Python, can lead to the sentence
};

// Sorted by `c`. tests/client/words_test.py refuses a sentence with a name that is missing here.
std::string in_words_of(Face face, std::string_view sentence);
// Whether anything in it might be replaced. Cheap, and without allocation.
inline bool names_something(std::string_view sentence) noexcept {
  return sentence.find("shmb_") != sentence.npos || sentence.find("SHMB_") != sentence.npos;
}
const Word* find_word(std::string_view name) noexcept;

}  // namespace shmb::client
