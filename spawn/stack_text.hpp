// SPDX-License-Identifier: Apache-2.0
// Stacks and types as texts, for programs in C++ that tell of an exception: names come from dynamic symbol tables and
// are demangled. A program links with -rdynamic to have its own names shown; else offsets are given, for addr2line.
// Threads: any.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace shmb::spawn {

// A type as its source has it, from its mangled name. std::throw_with_nested throws a type of the library's own,
// derived from the one that it was given: that one is told.
std::string type_text(const char* mangled);

// "a::f<g>" of "std::vector<int> a::f<g>(int)".
std::string_view function_in(std::string_view name);

// One line for each frame, the one that threw first. Frames of std, of the C library and of this one are left out, and
// the frame that returns to `bottom` with all above it.
std::string stack_text(void* const* frames, std::size_t count, const void* bottom);

}  // namespace shmb::spawn
