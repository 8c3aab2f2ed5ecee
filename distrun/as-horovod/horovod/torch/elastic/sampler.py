"""The sampler of elastic training."""

from distrun.data.elastic_sampler import ElasticSampler as ElasticSampler
