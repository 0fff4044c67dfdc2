/**
 * `QuestionnaireResponse/$extract`: returns a transaction. https://hl7.org/fhir/uv/sdc/extraction.html
 * Rejects definitions, Bundle templates and StructureMaps, so that no answer is lost silently.
 */
import { randomUUID } from 'node:crypto'
import { badRequest, notSupported, tooCostly, unknownDefinition } from '../../core/errors.ts'
import { yieldTurn } from '../../core/yielding.ts'
import {
  asArray,
  isObject,
  isResource,
  type Resource,
  referenceIn,
  toObjects,
} from '../../fhir/resource.ts'
import { compileTenant, withinLimits } from '../../fhirpath/custom.ts'
import { type Inputs, readInputs } from '../../request/parameters.ts'
import { jsonReply } from '../../request/reply.ts'
import type { Operation, OperationCall } from '../../request/request.ts'
import { findCanonical } from '../../rest/criteria.ts'
import { parseVersion } from '../../store/rows/rows.ts'
import {
  compileAhead,
  nodeTypePath,
  type ResolveVariables,
  templateExpressions,
  variableResolver,
} from './extract-variables.ts'

const RESPONSE = 'QuestionnaireResponse'
const SDC = 'http://hl7.org/fhir/uv/sdc/StructureDefinition/sdc-questionnaire-'
const MOST_ENTRIES = 200

/** Errors: 400, 404. */
export const extract: Operation = {
  name: 'extract',
  on: [
    { type: RESPONSE, level: 'instance' },
    { type: RESPONSE, level: 'type' },
  ],
  definition: 'http://hl7.org/fhir/uv/sdc/OperationDefinition/QuestionnaireResponse-extract',
  methods: ['GET', 'POST'],
  inputs: {
    'questionnaire-response': 'resource: The answers',
    questionnaire: 'resource: In place of the one that they name',
  },
  text: {
    summary: 'Extract resources from answers',
    description: 'Returns a transaction Bundle without executing it.',
    answer: 'Bundle',
  },
  async run(call) {
    const inputs = readInputs(call)
    const response = await readResponse(call, inputs)
    const questionnaire = await requireQuestionnaire(call, inputs, response)
    requireKnown(questionnaire)
    const expressions = templateExpressions(questionnaire)
    const variables = { questionnaire, context: response }
    const resolve = variableResolver(call, expressions, { questionnaire, response })
    const makers: Maker[] = []
    const { subject } = response
    const walk = { response, resolve, makers, isObserved: false, category: [], subject }
    const place = { questionnaire, path: 'Questionnaire' }
    await walkItems({ ...walk, ...place }, { node: response, root: response, variables })
    requireFew(makers)
    await compileAhead(expressions)
    const entries: Entry[] = []
    for (const make of makers) {
      entries.push(...withinLimits(make))
      requireFew(entries)
      await yieldTurn()
    }
    const entry = entries.length === 0 ? undefined : entries
    return jsonReply(200, { resourceType: 'Bundle', type: 'transaction', entry })
  },
}

/** Errors: 400 too-costly. */
function requireFew({ length }: readonly unknown[]): void {
  if (length > MOST_ENTRIES) throw tooCostly(`It would make more than ${MOST_ENTRIES} resources`)
}

async function readResponse(
  { services, principal, id }: OperationCall,
  inputs: Inputs,
): Promise<Resource> {
  if (id !== undefined) return parseVersion(await services.repository.read(principal, RESPONSE, id))
  const given = inputs.resource('questionnaire-response')
  if (given?.resourceType === RESPONSE) return given
  throw badRequest(`"questionnaire-response" must hold a ${RESPONSE}`)
}

async function requireQuestionnaire(
  call: OperationCall,
  inputs: Inputs,
  { questionnaire: canonical, contained }: Resource,
): Promise<Resource> {
  const given = inputs.resource('questionnaire')
  if (given !== undefined) {
    if (given.resourceType === 'Questionnaire') return given
    throw badRequest('"questionnaire" must hold a Questionnaire')
  }
  if (typeof canonical !== 'string') throw badRequest('The response names no Questionnaire')
  const inside = Array.isArray(contained) ? contained.filter(isResource) : []
  const found = canonical.startsWith('#')
    ? inside.find((one) => `#${one.id}` === canonical && one.resourceType === 'Questionnaire')
    : await findCanonical(call, 'Questionnaire', canonical)
  if (found !== undefined) return found
  throw unknownDefinition('The Questionnaire of the response is not known')
}

const OTHER_WAYS =
  /itemExtractionContext|definitionExtract|templateExtractBundle|targetStructureMap/

function requireKnown(questionnaire: Resource): void {
  const walk = (item: Item) => {
    const other = toObjects(item.extension).find(({ url }) => OTHER_WAYS.test(String(url)))
    if (other !== undefined) throw notSupported(`${String(other.url)} is not supported`)
    for (const child of toObjects(item.item)) walk(child)
  }
  walk(questionnaire)
}

type Item = Readonly<Record<string, unknown>>

interface Entry {
  readonly fullUrl: string
  readonly resource: Resource
  readonly request: Readonly<Record<string, unknown>>
}

type Maker = () => readonly Entry[]

interface Walk {
  readonly response: Resource
  readonly resolve: ResolveVariables
  /** The Questionnaire or one of its items, and its path. */
  readonly questionnaire: Item
  readonly path: string
  readonly makers: Maker[]
  /** Extracts Observations, unless an item overrides it. */
  readonly isObserved: boolean
  readonly category: readonly unknown[]
  readonly subject: unknown
}

/** `scope.node` is the response or one of its items. */
async function walkItems(walk: Walk, scope: Scope): Promise<void> {
  const { questionnaire, path, makers, resolve } = walk
  const known = { ...scope.variables, ...allocated(questionnaire) }
  const variables = await resolve({ defined: questionnaire, path, node: scope.node, known })
  const inner = { ...scope, variables }
  for (const extension of sdcExtensions(questionnaire, 'templateExtract')) {
    makers.push(() => templateEntries(walk, extension, inner))
  }
  const isObserved = sdcExtensions(questionnaire, 'observationExtract')[0]?.valueBoolean
  const own = sdcExtensions(questionnaire, 'observation-extract-category')
  const categories = own.map(({ valueCodeableConcept }) => valueCodeableConcept)
  const category = categories.length > 0 ? categories : walk.category
  const node = isObject(scope.node) ? scope.node : {}
  const answers = toObjects(node.answer)
  const children = [...toObjects(node.item), ...answers.flatMap(({ item }) => toObjects(item))]
  const subject = subjectIn(questionnaire, children) ?? walk.subject
  const below = { ...walk, category, subject, isObserved: (isObserved ?? walk.isObserved) === true }
  if (below.isObserved && Array.isArray(questionnaire.code)) {
    for (const answer of answers) makers.push(() => [observationEntry(below, answer)])
  }
  for (const [i, defined] of toObjects(questionnaire.item).entries()) {
    const place = { questionnaire: defined, path: `${path}.item[${i}]` }
    for (const child of children.filter(({ linkId }) => linkId === defined.linkId)) {
      await walkItems({ ...below, ...place }, { ...inner, node: child })
    }
  }
}

function subjectIn({ item }: Item, children: readonly Item[]): unknown {
  const defined = toObjects(item).find((one) => sdcExtensions(one, 'isSubject')[0]?.valueBoolean)
  const answered = defined && children.find(({ linkId }) => linkId === defined.linkId)
  return toObjects(answered?.answer)[0]?.valueReference
}

function sdcExtensions(item: Item, name: string): readonly Item[] {
  return toObjects(item.extension).filter(({ url }) => url === `${SDC}${name}`)
}

/** Names of ids shared by this item's templates. */
function allocated(item: Item): Record<string, string> {
  const names = sdcExtensions(item, 'extractAllocateId').map(({ valueString }) => valueString)
  const texts = names.filter((name) => typeof name === 'string')
  return Object.fromEntries(texts.map((name) => [name, `urn:uuid:${randomUUID()}`]))
}

const CONDITIONS = ['ifNoneMatch', 'ifModifiedSince', 'ifMatch', 'ifNoneExist']

/** Returns an entry for each value of the template's own context; one without a context. */
function templateEntries(
  { questionnaire, response }: Walk,
  extension: Item,
  scope: Scope,
): readonly Entry[] {
  const part = (name: string) => toObjects(extension.extension).find(({ url }) => url === name)
  const text = (name: string) => {
    const expression = part(name)?.valueString
    if (typeof expression !== 'string') return undefined
    const [value] = evaluated(expression, scope)
    return value === undefined ? undefined : String(value)
  }
  const name = referenceIn(part('template')?.valueReference)
  const { contained } = isObject(scope.variables.questionnaire)
    ? scope.variables.questionnaire
    : questionnaire
  const template = toObjects(contained).find(({ id }) => `#${String(id)}` === name)
  if (!isResource(template)) throw badRequest(`The template ${name} is not contained`)
  const copies = fillTemplate(template, { ...scope, root: response })
  const id = text('resourceId')
  const type = template.resourceType
  const conditions = CONDITIONS.flatMap((condition) => {
    const value = text(condition)
    return value === undefined ? [] : [[condition, value]]
  })
  const request = {
    method: id === undefined ? 'POST' : 'PUT',
    url: id === undefined ? type : `${type}/${id}`,
    ...Object.fromEntries(conditions),
  }
  return copies.map((copy) => {
    if (!isObject(copy)) throw badRequest(`The template ${name} makes no resource`)
    const { id: _, ...resource } = copy
    return {
      fullUrl: text('fullUrl') ?? `urn:uuid:${randomUUID()}`,
      resource: { ...resource, resourceType: type, ...(id === undefined ? {} : { id }) },
      request,
    }
  })
}

/** https://hl7.org/fhir/uv/sdc/extraction.html#observation-based-extraction */
function observationEntry(walk: Walk, answer: Item): Entry {
  const { questionnaire, response, subject, category } = walk
  const { basedOn, partOf, encounter, authored, author } = response
  const whole = {
    basedOn,
    partOf,
    category: category.length > 0 ? category : undefined,
    code: { coding: questionnaire.code },
    subject,
    encounter,
    effectiveDateTime: authored,
    issued: typeof authored === 'string' && authored.includes('T') ? authored : undefined,
    performer: author === undefined ? undefined : [author],
    ...observed(questionnaire, answer),
    derivedFrom: response.id && [{ reference: `${RESPONSE}/${response.id}` }],
  }
  const given = Object.entries(whole).filter(([, value]) => value !== undefined)
  return {
    fullUrl: `urn:uuid:${randomUUID()}`,
    resource: { resourceType: 'Observation', status: 'final', ...Object.fromEntries(given) },
    request: { method: 'POST', url: 'Observation' },
  }
}

const UNIT = 'http://hl7.org/fhir/StructureDefinition/questionnaire-unit'

/** Maps answer types that Observation lacks to equivalent ones. */
function observed(item: Item, answer: Item): Readonly<Record<string, unknown>> {
  const { valueDecimal, valueDate, valueCoding, valueUri } = answer
  if (valueCoding !== undefined) return { valueCodeableConcept: { coding: [valueCoding] } }
  if (valueDate !== undefined) return { valueDateTime: valueDate }
  if (valueUri !== undefined) return { valueString: valueUri }
  if (valueDecimal !== undefined) {
    const coding = toObjects(item.extension).find(({ url }) => url === UNIT)?.valueCoding
    const { system, code, display } = isObject(coding) ? coding : {}
    return { valueQuantity: { value: valueDecimal, unit: display, system, code } }
  }
  const names = [
    'valueBoolean',
    'valueInteger',
    'valueDateTime',
    'valueTime',
    'valueString',
    'valueQuantity',
  ]
  const name = names.find((one) => answer[one] !== undefined)
  if (name === undefined) throw notSupported('An Observation cannot have an answer of this type')
  return { [name]: answer[name] }
}

// Fills a resource template by FHIRPath. https://hl7.org/fhir/uv/sdc/extraction.html#template-extract

const CONTEXT = `${SDC}templateExtractContext`
const VALUE = `${SDC}templateExtractValue`
const MOST_COPIES = 1000

interface Scope {
  readonly node: unknown
  readonly root: Resource
  readonly variables: Readonly<Record<string, unknown>>
}

function evaluated(expression: string, { node, root, variables }: Scope): unknown[] {
  return compileTenant(expression, nodeTypePath(node))(node, { ...variables, resource: root })
}

/** Copies an element for each value of its context; once without a context. */
function fillTemplate(element: Readonly<Record<string, unknown>>, scope: Scope): unknown[] {
  const { expression, name } = expressionIn(element, CONTEXT)
  const nodes = expression === undefined ? [scope.node] : evaluated(expression, scope)
  if (nodes.length > MOST_COPIES) throw tooCostly('A template has too many copies')
  return nodes.flatMap((node) => {
    const variables = name === undefined ? scope.variables : { ...scope.variables, [name]: node }
    return fillElement(element, { ...scope, node, variables })
  })
}

function fillElement(element: Readonly<Record<string, unknown>>, scope: Scope): unknown[] {
  const own = expressionIn(element, VALUE).expression
  if (own !== undefined) return evaluated(own, scope)
  const copy: Record<string, unknown> = {}
  for (const [name, value] of Object.entries(element)) {
    if (name.startsWith('_')) continue
    const made = Array.isArray(value) ? fillList(value, scope) : fillMember(name, value, scope)
    if (made !== undefined) copy[name] = made
  }
  for (const [name, value] of Object.entries(element)) {
    if (name.startsWith('_')) fillPrimitive(copy, name.slice(1), value, scope)
  }
  return Object.keys(copy).length === 0 ? [] : [copy]
}

/** A non-repeating element takes the first value. */
function fillMember(name: string, value: unknown, scope: Scope): unknown {
  if (!isObject(value)) return name === 'extension' ? undefined : value
  return fillTemplate(value, scope)[0]
}

function fillList(list: readonly unknown[], scope: Scope): unknown[] | undefined {
  const items = list.flatMap((item) => {
    if (!isObject(item)) return [item]
    return item.url === CONTEXT || item.url === VALUE ? [] : fillTemplate(item, scope)
  })
  return items.length === 0 ? undefined : items
}

/** `_name` holds the extensions of primitive `name`, in parallel arrays for lists. */
function fillPrimitive(
  copy: Record<string, unknown>,
  name: string,
  value: unknown,
  scope: Scope,
): void {
  const isList = Array.isArray(value)
  const expressions = (isList ? value : [value]).map((source: unknown) =>
    isObject(source) ? expressionIn(source, VALUE).expression : undefined,
  )
  if (expressions.every((expression) => expression === undefined)) {
    copy[`_${name}`] = value
    return
  }
  const fixed = isList ? asArray(copy[name]) : []
  const length = Math.max(expressions.length, fixed.length)
  const values = Array.from({ length }, (_, i) => {
    const expression = expressions[i]
    return expression === undefined ? (fixed[i] ?? []) : evaluated(expression, scope)
  }).flat()
  if (values.length === 0) delete copy[name]
  else copy[name] = isList ? values : values[0]
}

/** Returns an element's extraction expression. Errors: 400 for another language. */
function expressionIn({ extension }: Readonly<Record<string, unknown>>, url: string) {
  const own = toObjects(extension).find((item) => item.url === url)
  if (own === undefined) return { expression: undefined, name: undefined }
  const { valueString, valueExpression } = own
  if (typeof valueString === 'string') return { expression: valueString, name: undefined }
  const { language, expression, name } = isObject(valueExpression) ? valueExpression : {}
  if (language !== 'text/fhirpath' || typeof expression !== 'string') {
    throw badRequest('A template needs expressions of text/fhirpath')
  }
  return { expression, name: typeof name === 'string' ? name : undefined }
}
