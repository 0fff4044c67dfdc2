/** `ValueSet/$expand`: https://hl7.org/fhir/R4/valueset-operation-expand.html */
import { randomUUID } from 'node:crypto'
import { may } from '../access/policy.ts'
import { badRequest, forbidden } from '../core/errors.ts'
import { plainBundle } from '../fhir/bundle.ts'
import { publishedIdentity, publishedStructure } from '../fhir/published.ts'
import { isObject } from '../fhir/resource.ts'
import type { Designation, ValueSet } from '../fhir/terminology.ts'
import { gatherProfiles, type ProfileSource } from '../identity/profiles.ts'
import { type Inputs, readInputs, toInteraction } from '../request/parameters.ts'
import { absoluteUrl, jsonReply, textReply, versionText } from '../request/reply.ts'
import type { Operation, OperationCall } from '../request/request.ts'
import { isStructureDefinition, type StructureDefinition } from '../validation/profiles/tree.ts'
import {
  displayLanguages,
  isOfLanguage,
  preferredDisplay,
  SUPPLEMENTS,
  VERSIONS,
  withForcedVersions,
  withRequestedVersions,
  withSupplements,
} from './adjusted.ts'
import { definitionNotFound, ownResource, terminologyOperation, validateSent } from './codes.ts'
import { linkedReaders, type Terminology } from './find.ts'
import { evaluation } from './members.ts'
import { type Code, expandValueSet } from './value-set-codes.ts'

const MAX_COUNT = 1000
const FILTERED_COUNT = 10
const MAX_OFFSET = 10_000

export const expand = terminologyOperation(
  {
    name: 'expand',
    type: 'ValueSet',
    inputs: {
      url: 'text: Of the ValueSet',
      valueSetVersion: 'text: Of the ValueSet',
      filter: 'text: Words of the display',
      displayLanguage: 'text: de, for example',
      ...SUPPLEMENTS,
      ...VERSIONS,
      valueSet: 'resource: In place of a stored ValueSet',
      offset: 'whole: Codes to skip',
      count: 'whole: Most codes',
      excludeNotForUI: 'flag: Without abstract codes',
      activeOnly: 'flag: Without retired codes',
      // Expansions are always flat lists of defined codes, regardless of these two.
      excludeNested: 'flag: Always so',
      excludePostCoordinated: 'flag: Always so',
      includeDesignations: 'flag: With the names of the codes',
      includeDefinition: 'flag: With `compose`',
      designation: 'text*: Only names of this language or use',
    },
    text: { summary: 'List the codes of a value set', answer: 'ValueSet' },
  },
  async ({ call, inputs, terminology: found }) => {
    const asked = withRequestedVersions(found, inputs)
    const text = inputs.text('filter')
    const offset = readNonNegative(inputs, 'offset', 0, MAX_OFFSET)
    const count = readNonNegative(inputs, 'count', text === undefined ? MAX_COUNT : FILTERED_COUNT)
    const valueSet = withForcedVersions(await requireValueSet(call, asked, inputs), inputs)
    const terminology = await withSupplements(asked, inputs, valueSet)
    const languages = displayLanguages(call, inputs, valueSet)
    const { codes, isCut } = await expandValueSet(evaluation(terminology), valueSet, {
      text,
      activeOnly: inputs.flag('activeOnly') === true,
      selectableOnly: inputs.flag('excludeNotForUI'),
      needed: offset + count,
    })
    const page = codes.slice(offset, offset + Math.min(count, MAX_COUNT))
    return jsonReply(200, {
      resourceType: 'ValueSet',
      ...valueSet,
      ...('status' in valueSet ? {} : { status: 'active' }),
      compose: inputs.flag('includeDefinition') ? valueSet.compose : undefined,
      meta: valueSet.meta && {
        versionId: valueSet.meta.versionId,
        lastUpdated: valueSet.meta.lastUpdated,
      },
      expansion: {
        identifier: `urn:uuid:${randomUUID()}`,
        timestamp: new Date().toISOString(),
        ...(isCut ? {} : { total: codes.length }),
        offset,
        ...expansionParameters(inputs, page),
        ...(page.length === 0
          ? {}
          : { contains: page.map((code) => contained(code, languages, inputs)) }),
      },
    })
  },
)

function readNonNegative(inputs: Inputs, name: string, otherwise: number, most?: number): number {
  const value = inputs.whole(name) ?? otherwise
  if (value < 0) throw badRequest(`"${name}" must not be negative`, name)
  if (most !== undefined && value > most) {
    throw badRequest(`"${name}" must be at most ${most}`, name)
  }
  return Math.min(value, most ?? MAX_COUNT)
}

/** Errors: 400 when none or several are named, 404 when absent. */
export async function requireValueSet(
  call: OperationCall,
  terminology: Terminology,
  inputs: Inputs,
): Promise<ValueSet> {
  const sent = inputs.resource('valueSet')
  const url = inputs.text('url')
  if (call.id !== undefined && sent !== undefined) {
    throw badRequest('The address names a ValueSet already', 'valueSet')
  }
  const resource = (await ownResource(call)) ?? (sent && validateSent('ValueSet', sent))
  if (resource !== undefined) {
    if (url === undefined || url.split('|')[0] === resource.url) {
      return resource as unknown as ValueSet
    }
    throw badRequest(`The ValueSet of the call is ${resource.url ?? 'without a url'}`, 'url')
  }
  if (url === undefined) throw badRequest('Missing required parameter "url"', 'url')
  const implicit = /^([^?]+)\?fhir_vs(?:=isa\/(.+))?$/.exec(url)
  if (implicit !== null) return implicitValueSet(url, implicit[1], implicit[2])
  const version = inputs.text('valueSetVersion')
  const canonical = version === undefined ? url : `${url}|${version}`
  const found = await terminology.valueSet(canonical)
  if (found === undefined) throw definitionNotFound('ValueSet', canonical)
  return found.meta === undefined ? { ...found, ...publishedIdentity(found.url) } : found
}

/** Returns all codes of a system, or below one: https://hl7.org/fhir/R4/snomedct.html#implicit */
function implicitValueSet(url: string, system = '', root: string | undefined): ValueSet {
  const filter =
    root === undefined ? {} : { filter: [{ property: 'concept', op: 'is-a', value: root }] }
  return { url, compose: { include: [{ system, ...filter }] } }
}

function expansionParameters(inputs: Inputs, codes: readonly Code[]): object {
  const texts = ['filter', 'displayLanguage'].flatMap((name) => {
    const value = inputs.text(name)
    return value === undefined ? [] : [{ name, valueString: value }]
  })
  const wholes = ['count', 'offset'].flatMap((name) => {
    const value = inputs.whole(name)
    return value === undefined ? [] : [{ name, valueInteger: value }]
  })
  const used = codes.flatMap(({ system, version }) => (version ? `${system}|${version}` : []))
  const versions = [...new Set(used)].map((valueUri) => ({ name: 'version', valueUri }))
  const parameter = [...texts, ...wholes, ...versions]
  return parameter.length === 0 ? {} : { parameter }
}

function contained(code: Code, languages: readonly string[], inputs: Inputs): object {
  const display = preferredDisplay(languages, code)
  const wanted = inputs.texts('designation')
  const designation = inputs.flag('includeDesignations')
    ? code.designations.filter((item) => wanted.length === 0 || wanted.some(names(item)))
    : []
  return {
    system: code.system,
    ...(code.isAbstract ? { abstract: true } : {}),
    ...(code.isInactive ? { inactive: true } : {}),
    code: code.code,
    ...(display === undefined ? {} : { display }),
    ...(designation.length === 0 ? {} : { designation }),
  }
}

/** Returns a test for parameter `designation`: the code of a use or a language. */
function names(designation: Designation) {
  const { use } = designation
  const [system, code] = isObject(use) ? [use.system, use.code] : []
  return (token: string): boolean => {
    const bar = token.lastIndexOf('|')
    const value = token.slice(bar + 1)
    const scope = bar < 0 ? undefined : token.slice(0, bar)
    if (scope === LANGUAGES) return isOfLanguage(designation.language, value)
    return code === value && (scope === undefined || scope === system)
  }
}

const LANGUAGES = 'urn:ietf:bcp:47'

/** Returns the caller's profiles and the standard's; unknown ones are omitted. Errors: 400, 403, 404. */
export const expandProfile: Operation = {
  name: 'expand-profile',
  on: [{ type: 'StructureDefinition', level: 'type' }],
  methods: ['GET', 'POST'],
  onlyReads: true,
  inputs: { url: 'text!: Of the StructureDefinition' },
  text: { summary: 'Read a profile with those it refers to', answer: 'Bundle' },
  async run(call) {
    const { services, principal } = call
    if (!may(principal, 'StructureDefinition', 'search')) throw forbidden()
    const url = readInputs(call).required('url')
    const context = toInteraction(call)
    const source: ProfileSource<ShownProfile> = {
      readers: await linkedReaders(services, principal, 'StructureDefinition'),
      stored(version, definition) {
        const fullUrl = absoluteUrl(services, `${version.type}/${version.id}`)
        return { definition, entry: { fullUrl, resource: versionText(context, version) } }
      },
      published(canonical) {
        const definition: unknown = publishedStructure(canonical)
        if (!isStructureDefinition(definition)) return undefined
        const { id } = publishedIdentity(definition.url)
        const fullUrl = absoluteUrl(services, `StructureDefinition/${id}`)
        return { definition, entry: { fullUrl, resource: JSON.stringify(definition) } }
      },
    }
    const found = await gatherProfiles(services.repository, source, url)
    if (!found.has(url)) throw definitionNotFound('StructureDefinition', url)
    const distinct = new Map([...found.values()].map(({ entry }) => [entry.fullUrl, entry]))
    return textReply(200, plainBundle('searchset', [...distinct.values()]))
  },
}

interface ShownProfile {
  readonly definition: StructureDefinition
  readonly entry: { readonly fullUrl: string; readonly resource: string }
}
