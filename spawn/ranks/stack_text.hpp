// SPDX-License-Identifier: Apache-2.0
// Stacks and types as texts, for C++ programs that report an exception. Names come from dynamic symbol tables and are
// demangled. A program needs -rdynamic to have its own names shown. Otherwise offsets are given, for addr2line.
// Threads: any.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace shmb::spawn {

// A type as in its source, from its mangled name. std::throw_with_nested throws a type of the standard library, derived
// from the given one: the given one is returned.
std::string type_text(const char* mangled);

// "a::f<g>" of "std::vector<int> a::f<g>(int)".
std::string_view function_in(std::string_view name);

// One line for each frame. The first is the frame that threw. Frames of std, of the C library and of this library are
// left out. So are the frame that returns to `bottom` and all frames above it.
std::string stack_text(void* const* frames, std::size_t count, const void* bottom);

}  // namespace shmb::spawn
