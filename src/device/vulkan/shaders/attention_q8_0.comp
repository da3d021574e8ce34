#version 460
// SPDX-License-Identifier: Apache-2.0
#extension GL_GOOGLE_include_directive : require
#include "attention_q8_0.glsl"
