/**
 * The FHIRPath engine, loaded when the first expression needs it: with its tables of units and of FHIR's
 * types it takes 27 to 37 MB and 0.2 s, which who can wait spends in turns of the event loop.
 */
import { createRequire } from 'node:module'
import { setImmediate as nextTurn } from 'node:timers/promises'
import type { Model } from 'fhirpath'

type Fhirpath = typeof import('fhirpath').default

interface Engine {
  readonly fhirpath: Fhirpath
  readonly r4: Model
}

const require = createRequire(import.meta.url)
let loaded: Engine | undefined
let loading: Promise<void> | undefined

export function engine(): Engine {
  loaded ??= { fhirpath: require('fhirpath'), r4: require('fhirpath/fhir-context/r4') }
  return loaded
}

/** Modules that the engine would load by itself, in the order of need and under its own names. */
const PARTS = [
  'antlr4/src/antlr4/atn/index',
  'antlr4/src/antlr4/tree/index',
  './parser/antlr4-index',
  './parser/generated/FHIRPathLexer',
  './parser/generated/FHIRPathParser',
  '@lhncbc/ucum-lhc',
  './types',
  './terminologies',
  './fhirpath',
  '../fhir-context/r4/path2Type.json',
  '../fhir-context/r4',
]

/** The first expressions are slow: much of the parser and of the engine is compiled by them. */
const FIRST = ['use', "use = 'official' and period.start > @2020-01-01", '%resource.name.exists()']
const FIRST_NAME = { use: 'official', period: { start: '2020-01-02' } }
const FIRST_RESOURCE = { resourceType: 'Patient', name: [FIRST_NAME] }

/** Has `engine` at hand, part by part. */
export function loadEngine(): Promise<void> {
  loading ??= loaded === undefined ? loadParts() : Promise.resolve()
  return loading
}

async function loadParts(): Promise<void> {
  const within = createRequire(require.resolve('fhirpath'))
  for (const part of PARTS) {
    within(part)
    await nextTurn()
  }
  const { fhirpath, r4 } = engine()
  for (const expression of FIRST) {
    const run = fhirpath.compile({ base: 'Patient.name', expression }, r4, {})
    await nextTurn()
    run(FIRST_NAME, { resource: FIRST_RESOURCE, rootResource: FIRST_RESOURCE })
    await nextTurn()
  }
}
