/** `ValueSet/$expand`: https://hl7.org/fhir/R4/valueset-operation-expand.html */
import { randomUUID } from 'node:crypto'
import { badRequest, notFound } from '../errors.ts'
import type { ValueSet } from '../fhir/terminology.ts'
import type { OperationCall } from '../request/operation.ts'
import type { Inputs, ParameterDefinition } from '../request/parameters.ts'
import { jsonReply } from '../request/reply.ts'
import { ownResource, sentAs, terminologyOperation, texts } from './codes.ts'
import type { Terminology } from './find.ts'
import { evaluation } from './members.ts'
import { type Code, expandValueSet } from './terminology-expand.ts'

const MAX_COUNT = 1000
const FILTERED_COUNT = 10
const MAX_OFFSET = 10_000

const PARAMETERS: readonly ParameterDefinition[] = [
  ...texts('url', 'valueSetVersion', 'filter', 'displayLanguage'),
  { name: 'valueSet', kind: 'resource' },
  { name: 'offset', kind: 'whole' },
  { name: 'count', kind: 'whole' },
  { name: 'excludeNotForUI', kind: 'flag' },
  { name: 'activeOnly', kind: 'flag' },
]

export const expand = terminologyOperation(
  'expand',
  ['ValueSet'],
  () => PARAMETERS,
  async ({ call, inputs, terminology }) => {
    const text = inputs.text('filter')
    const offset = wholeOf(inputs, 'offset', 0, MAX_OFFSET)
    const count = wholeOf(inputs, 'count', text === undefined ? MAX_COUNT : FILTERED_COUNT)
    const valueSet = await valueSetOf(call, terminology, inputs)
    const wish = { text, activeOnly: inputs.flag('activeOnly') === true, needed: offset + count }
    const { codes, isCut } = await expandValueSet(evaluation(terminology), valueSet, wish)
    const language = inputs.text('displayLanguage')
    const shown = inputs.flag('excludeNotForUI') ? codes.filter((code) => !code.isAbstract) : codes
    const page = shown.slice(offset, offset + Math.min(count, MAX_COUNT))
    return jsonReply(200, {
      resourceType: 'ValueSet',
      ...valueSet,
      ...('status' in valueSet ? {} : { status: 'active' }),
      // The expansion is another resource than the stored one: undefined members are left out.
      compose: undefined,
      meta: undefined,
      expansion: {
        identifier: `urn:uuid:${randomUUID()}`,
        timestamp: new Date().toISOString(),
        ...(isCut ? {} : { total: shown.length }),
        offset,
        ...parametersOf(inputs),
        ...(page.length === 0 ? {} : { contains: page.map((code) => contained(code, language)) }),
      },
    })
  },
)

function wholeOf(inputs: Inputs, name: string, otherwise: number, most?: number): number {
  const value = inputs.whole(name) ?? otherwise
  if (value < 0) throw badRequest(`"${name}" must not be negative`)
  if (most !== undefined && value > most) throw badRequest(`"${name}" must be at most ${most}`)
  return Math.min(value, most ?? MAX_COUNT)
}

/** Errors: 400 when none is named, 404 when it is not there. */
export async function valueSetOf(
  call: OperationCall,
  terminology: Terminology,
  inputs: Inputs,
): Promise<ValueSet> {
  const sent = inputs.resource('valueSet')
  const resource = (await ownResource(call)) ?? (sent && sentAs('ValueSet', sent))
  // It has that type and is valid: it was stored or has just been checked.
  if (resource !== undefined) return resource as unknown as ValueSet
  const url = inputs.text('url')
  if (url === undefined) throw badRequest('Missing required parameter "url"')
  const implicit = /^([^?]+)\?fhir_vs(?:=isa\/(.+))?$/.exec(url)
  if (implicit !== null) return implicitValueSet(url, implicit[1], implicit[2])
  const version = inputs.text('valueSetVersion')
  const found = await terminology.valueSet(version === undefined ? url : `${url}|${version}`)
  if (found === undefined) throw notFound()
  return found
}

/** All codes of a system, or all below one: https://hl7.org/fhir/R4/snomedct.html#implicit */
function implicitValueSet(url: string, system = '', root: string | undefined): ValueSet {
  const filter = root === undefined ? {} : { filter: [isA(root)] }
  return { url, compose: { include: [{ system, ...filter }] } }
}

function isA(value: string) {
  return { property: 'concept', op: 'is-a', value }
}

function parametersOf(inputs: Inputs): object {
  const texts = ['filter', 'displayLanguage'].flatMap((name) => {
    const value = inputs.text(name)
    return value === undefined ? [] : [{ name, valueString: value }]
  })
  const wholes = ['count', 'offset'].flatMap((name) => {
    const value = inputs.whole(name)
    return value === undefined ? [] : [{ name, valueInteger: value }]
  })
  const parameter = [...texts, ...wholes]
  return parameter.length === 0 ? {} : { parameter }
}

function contained(code: Code, language: string | undefined): object {
  const translated = code.designations.find((item) => item.language === language)
  return {
    system: code.system,
    ...(code.isAbstract ? { abstract: true } : {}),
    ...(code.isInactive ? { inactive: true } : {}),
    code: code.code,
    ...(code.display === undefined ? {} : { display: code.display }),
    ...(language === undefined || translated === undefined ? {} : { display: translated.value }),
  }
}
