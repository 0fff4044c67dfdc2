/**
 * `$validate-code` of CodeSystem and ValueSet:
 * https://hl7.org/fhir/R4/valueset-operation-validate-code.html
 */
import type { ValueSet } from '../fhir/terminology.ts'
import { normaliseString } from '../fhir/values.ts'
import type { OperationCall } from '../request/operation.ts'
import { type Inputs, parametersReply } from '../request/parameters.ts'
import type { FhirReply } from '../request/request.ts'
import {
  CODE_PARAMETERS,
  codeSourceOf,
  type GivenCode,
  givenCodes,
  sentAs,
  terminologyOperation,
  texts,
} from './codes.ts'
import type { ConceptNode } from './concept-index.ts'
import { valueSetOf } from './expand.ts'
import type { CodeSource, Terminology } from './find.ts'
import { composeOf, evaluation, membersOf } from './members.ts'

export const validateCode = terminologyOperation(
  'validate-code',
  ['CodeSystem', 'ValueSet'],
  (type) => [
    ...CODE_PARAMETERS,
    ...texts('url', 'valueSetVersion'),
    { name: type === 'ValueSet' ? 'valueSet' : 'codeSystem', kind: 'resource' },
  ],
  async ({ call, inputs, terminology }) => {
    const codes = givenCodes(inputs)
    return call.type === 'ValueSet'
      ? inValueSet(call, terminology, inputs, codes)
      : inCodeSystem(call, terminology, inputs, codes)
  },
)

async function inCodeSystem(
  call: OperationCall,
  terminology: Terminology,
  inputs: Inputs,
  codes: readonly GivenCode[],
): Promise<FhirReply> {
  const url = inputs.text('url') ?? codes[0]?.system
  const sent = inputs.resource('codeSystem')
  const source =
    sent === undefined
      ? await codeSourceOf(call, terminology, url, inputs.text('version'))
      : await terminology.sourceOf(sentAs('CodeSystem', sent))
  const { codeSystem } = source
  const own = codes.filter(({ system }) => system === undefined || system === codeSystem.url)
  for (const code of own) {
    const node = await nodeOf(source, code.code)
    if (node !== undefined) return verdict(code, node, node.display)
  }
  return refusal(codes, `CodeSystem ${codeSystem.url}`)
}

async function inValueSet(
  call: OperationCall,
  terminology: Terminology,
  inputs: Inputs,
  codes: readonly GivenCode[],
): Promise<FhirReply> {
  const valueSet = await valueSetOf(call, terminology, inputs)
  for (const code of codes) {
    const systems =
      code.system === undefined ? systemsOf(composeOf(valueSet).include) : [code.system]
    for (const system of systems) {
      const members = await membersOf(evaluation(terminology), valueSet, system, [code.code])
      if (members.size === 0) continue
      const source = await terminology.codeSystem(system)
      const node = source && (await nodeOf(source, code.code))
      const display = node?.display ?? listedDisplay(valueSet, system, code.code)
      return verdict(code, node, display)
    }
  }
  return refusal(codes, `ValueSet ${valueSet.url ?? ''}`.trim())
}

/** The systems that a code without one may be of. */
function systemsOf(
  include: readonly { readonly system?: string | undefined }[] = [],
): readonly string[] {
  return [...new Set(include.flatMap(({ system }) => system ?? []))]
}

/** Returns the ValueSet's own display of a code whose CodeSystem is not here. */
function listedDisplay(valueSet: ValueSet, system: string, code: string): string | undefined {
  const lists = (composeOf(valueSet).include ?? []).filter((part) => part.system === system)
  const concepts = lists.flatMap(({ concept }) => concept ?? [])
  return concepts.find((concept) => concept.code === code)?.display
}

async function nodeOf(source: CodeSource, code: string): Promise<ConceptNode | undefined> {
  const { concepts } = await source.list({ codes: [code], limit: 1 })
  return concepts[0]
}

/** A wrong display makes the code wrong, and the reply has the right one. */
function verdict(
  { code, display: given }: GivenCode,
  node: ConceptNode | undefined,
  display: string | undefined,
): FhirReply {
  const names = [display, ...(node?.designations ?? []).map(({ value }) => value)]
  const isRight =
    given === undefined ||
    display === undefined ||
    names.some((name) => name !== undefined && normaliseString(name) === normaliseString(given))
  const message = `The display of ${code} is "${display}", not "${given}"`
  return parametersReply([
    ['result', 'valueBoolean', isRight],
    ['display', 'valueString', display],
    ['message', 'valueString', isRight ? undefined : message],
  ])
}

function refusal(codes: readonly GivenCode[], where: string): FhirReply {
  const names = codes.map(({ system, code }) => (system === undefined ? code : `${system}|${code}`))
  return parametersReply([
    ['result', 'valueBoolean', false],
    ['message', 'valueString', `${names.join(', ')} is not in ${where}`],
  ])
}
