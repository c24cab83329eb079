#pragma once

/*
 * The network of `train mnist` as a table of layers: for tests and figures that need one of a real size.
 */

#include "worker-runtime/crw.h"

enum { MNIST_CLASSES = 10, MNIST_PARAMETERS = 225226 };

static const struct crw_layer mnist_layers[] = {
    {CRW_LAYER_CONV2D, "conv1", 1, 32, 3},
    {CRW_LAYER_BATCHNORM2D, "n1", 32},
    {CRW_LAYER_RELU},
    {CRW_LAYER_MAXPOOL2D, .kernel = 2},
    {CRW_LAYER_CONV2D, "conv2", 32, 64, 3},
    {CRW_LAYER_BATCHNORM2D, "n2", 64},
    {CRW_LAYER_RELU},
    {CRW_LAYER_MAXPOOL2D, .kernel = 2},
    {CRW_LAYER_FLATTEN},
    {CRW_LAYER_LINEAR, "fc1", 1600, 128},
    {CRW_LAYER_RELU},
    {CRW_LAYER_LINEAR, "fc2", 128, 10},
    {CRW_LAYER_LOG_SOFTMAX},
};
static const struct crw_shape mnist_input = {1, 28, 28};
