/** Fills the template of a resource with what FHIRPath selects. https://hl7.org/fhir/uv/sdc/extraction.html#template-extract */
import { badRequest, tooCostly } from '../../errors.ts'
import { isObject, type Resource } from '../../fhir/resource.ts'
import { compileTenant } from '../../fhirpath/custom.ts'
import { loadEngine } from '../../fhirpath/engine.ts'
import { ownTurn } from '../../platform/event-loop-turns.ts'

const SDC = 'http://hl7.org/fhir/uv/sdc/StructureDefinition/sdc-questionnaire-'
const CONTEXT = `${SDC}templateExtractContext`
const VALUE = `${SDC}templateExtractValue`
const MOST_COPIES = 1000

/** Where expressions are evaluated. */
export interface Scope {
  readonly node: unknown
  /** `%resource`. */
  readonly root: Resource
  readonly variables: Readonly<Record<string, unknown>>
}

const MOST_EXPRESSIONS = 500
const BASES = [undefined, 'QuestionnaireResponse.item', 'QuestionnaireResponse.item.answer']

/** Compiles the expressions of a Questionnaire, which takes longer than to evaluate them, in turns of their own. */
export async function prepared(questionnaire: Resource): Promise<void> {
  const expressions = new Set<string>()
  const collect = (value: unknown) => {
    if (Array.isArray(value)) for (const item of value) collect(item)
    if (!isObject(value)) return
    const { url, valueString, valueExpression } = value
    const given = isObject(valueExpression) ? valueExpression.expression : valueString
    if (typeof given === 'string' && EXPRESSION.test(String(url))) expressions.add(given)
    for (const item of Object.values(value)) collect(item)
  }
  collect(questionnaire)
  if (expressions.size > MOST_EXPRESSIONS)
    throw tooCostly('The templates have too many expressions')
  await loadEngine()
  for (const expression of expressions) {
    for (const base of BASES) {
      compileTenant(expression, base)
      await ownTurn()
    }
  }
}

const EXPRESSION = /templateExtract(Context|Value)$|^(fullUrl|resourceId|if[A-Z]\w+)$/

export function evaluated(expression: string, { node, root, variables }: Scope): unknown[] {
  return compileTenant(expression, baseOf(node))(node, { ...variables, resource: root })
}

/** Nodes are those of a response, or values of its answers. */
function baseOf(node: unknown): string | undefined {
  if (!isObject(node) || node.resourceType !== undefined) return undefined
  if (typeof node.linkId === 'string') return 'QuestionnaireResponse.item'
  const isAnswer = Object.keys(node).some((name) => /^value[A-Z]/.test(name))
  return isAnswer ? 'QuestionnaireResponse.item.answer' : undefined
}

/** A copy of an element; undefined where its expression selects nothing. */
export function filled(element: unknown, scope: Scope): unknown {
  if (!isObject(element)) return element
  const [only] = copiesOf(element, scope)
  return only
}

/** As many copies as the context of an element has values; one where it names none. */
function copiesOf(element: Readonly<Record<string, unknown>>, scope: Scope): unknown[] {
  const { expression, name } = expressionIn(element, CONTEXT)
  const nodes = expression === undefined ? [scope.node] : evaluated(expression, scope)
  if (nodes.length > MOST_COPIES) throw tooCostly('A template has too many copies')
  return nodes.flatMap((node) => {
    const variables = name === undefined ? scope.variables : { ...scope.variables, [name]: node }
    return copyOf(element, { ...scope, node, variables })
  })
}

function copyOf(element: Readonly<Record<string, unknown>>, scope: Scope): unknown[] {
  const own = expressionIn(element, VALUE).expression
  if (own !== undefined) return evaluated(own, scope)
  const copy: Record<string, unknown> = {}
  for (const [name, value] of Object.entries(element)) {
    if (name.startsWith('_')) continue
    const made = Array.isArray(value) ? itemsOf(value, scope) : memberOf(name, value, scope)
    if (made !== undefined) copy[name] = made
  }
  for (const [name, value] of Object.entries(element)) {
    if (name.startsWith('_')) fillPrimitive(copy, name.slice(1), value, scope)
  }
  return Object.keys(copy).length === 0 ? [] : [copy]
}

/** An element that stands once takes the first value. */
function memberOf(name: string, value: unknown, scope: Scope): unknown {
  if (!isObject(value)) return name === 'extension' ? undefined : value
  return copiesOf(value, scope)[0]
}

function itemsOf(list: readonly unknown[], scope: Scope): unknown[] | undefined {
  const items = list.flatMap((item) => {
    if (!isObject(item)) return [item]
    return item.url === CONTEXT || item.url === VALUE ? [] : copiesOf(item, scope)
  })
  return items.length === 0 ? undefined : items
}

/** `_name` holds the extensions of the primitive `name`; those of an array stand one beside the other. */
function fillPrimitive(
  copy: Record<string, unknown>,
  name: string,
  value: unknown,
  scope: Scope,
): void {
  const isList = Array.isArray(value)
  const sources = (isList ? value : [value]).filter(isObject)
  const expressions = sources.flatMap((source) => expressionIn(source, VALUE).expression ?? [])
  if (expressions.length === 0) {
    copy[`_${name}`] = value
    return
  }
  const values = expressions.flatMap((expression) => evaluated(expression, scope))
  if (values.length === 0) delete copy[name]
  else copy[name] = isList ? values : values[0]
}

interface Named {
  readonly expression: string | undefined
  readonly name: string | undefined
}

/** The extension of an element that says what it is made of. Errors: 400 for another language. */
function expressionIn({ extension }: Readonly<Record<string, unknown>>, url: string): Named {
  const found = Array.isArray(extension) ? extension.filter(isObject) : []
  const own = found.find((item) => item.url === url)
  if (own === undefined) return { expression: undefined, name: undefined }
  const { valueString, valueExpression } = own
  if (typeof valueString === 'string') return { expression: valueString, name: undefined }
  const { language, expression, name } = isObject(valueExpression) ? valueExpression : {}
  if (language !== 'text/fhirpath' || typeof expression !== 'string') {
    throw badRequest('A template needs expressions of text/fhirpath')
  }
  return { expression, name: typeof name === 'string' ? name : undefined }
}
