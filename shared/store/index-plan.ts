/** One plan a resource type: every parameter's compiled walks, grouped by the property they need. */
import {
  COMPARTMENTS,
  compartmentParams,
  isResourceType,
  mainDate,
  searchParameters,
  storedParameters,
} from '../fhir/definitions.ts'
import type { SearchParameter } from '../fhir/definitions-data.ts'
import { compileExpression, type Leg, type Walk } from '../fhir/path-extract.ts'
import { targetOf } from '../fhir/values.ts'
import { planComposite } from './composite-plan.ts'
import type { Derivation } from './derivation.ts'

export interface PlannedParameter {
  readonly code: string
  readonly index: number
  readonly isMainDate: boolean
  /** Types of its elements: `Coding`, `Identifier`, `code` …; tells which keys a token has. */
  readonly types: readonly string[]
  /** `Patient/`, … for the compartments this parameter puts a resource into. */
  readonly compartments: readonly string[]
}

export interface Plan {
  readonly type: string
  readonly parameters: readonly PlannedParameter[]
  /** Root property → walks from the resource. */
  readonly roots: ReadonlyMap<string, readonly Walk<Derivation>[]>
  /** Walks that answer for an absent element too (`deceased` is false). */
  readonly whole: readonly Walk<Derivation>[]
  /** In the order of COMPARTMENTS: walks that collect `Type/id`. */
  readonly compartments: readonly (readonly Walk<Set<string>>[])[]
}

/** Undefined for what has no rows of its own: columns, unions, unknown parameters. */
export function plannedParameter(type: string, code: string): PlannedParameter | undefined {
  return planOf(type).parameters.find((parameter) => parameter.code === code)
}

/** True for a reference parameter that holds urls of conformance resources. */
export function isCanonicalParameter(type: string, code: string): boolean {
  const types = plannedParameter(type, code)?.types ?? []
  return types.includes('canonical') || types.includes('uri')
}

/** Compiled when the type is first met. Throws for what is no resource type. */
export function planOf(type: string): Plan {
  const known = plans.get(type)
  if (known) return known
  if (!isResourceType(type)) throw new Error(`No resource type "${type}"`)
  const plan = makePlan(type)
  plans.set(type, plan)
  return plan
}

const plans = new Map<string, Plan>()

/** Answered from columns of the row. */
const COLUMNS = new Set(['_id', '_lastUpdated'])

function makePlan(type: string): Plan {
  const parameters: PlannedParameter[] = []
  const roots = new Map<string, Walk<Derivation>[]>()
  const whole: Walk<Derivation>[] = []
  const compartments: Walk<Set<string>>[][] = COMPARTMENTS.map(() => [])
  const members = COMPARTMENTS.map((compartment) => new Set(compartmentParams(compartment, type)))
  const main = mainDate(type)

  for (const parameter of searchParameters(type).values()) {
    if (parameter.expression === undefined || COLUMNS.has(parameter.code)) continue
    if (storedParameters(type, parameter.code)[0] !== parameter.code) continue
    const index = parameters.length
    const legs = compileExpression(type, parameter.expression)
    const inside = members.map((codes) => codes.has(parameter.code))
    const planned: PlannedParameter = {
      code: parameter.code,
      index,
      isMainDate: parameter.code === main,
      types: [...new Set(legs.map((leg) => leg.type))],
      compartments: COMPARTMENTS.filter((_, i) => inside[i]).map((name) => `${name}/`),
    }
    parameters.push(planned)
    for (const leg of legs) {
      const walk = bindLeg(type, parameter, planned, leg)
      if (walk === undefined) continue
      if (leg.root === undefined) whole.push(walk)
      else roots.set(leg.root, [...(roots.get(leg.root) ?? []), walk])
      if (parameter.type !== 'reference') continue
      COMPARTMENTS.forEach((name, i) => {
        if (inside[i]) compartments[i]?.push(leg.bind(collectTargets(leg.type, `${name}/`)))
      })
    }
  }
  return { type, parameters, roots, whole, compartments }
}

function collectTargets(type: string, prefix: string): Walk<Set<string>> {
  return (value, found) => {
    const literal = targetOf(type, value)?.literal
    if (literal?.startsWith(prefix)) found.add(literal)
  }
}

function bindLeg(
  owner: string,
  parameter: SearchParameter,
  planned: PlannedParameter,
  leg: Leg,
): Walk<Derivation> | undefined {
  const { index } = planned
  const { type } = leg
  switch (parameter.type) {
    case 'token': {
      const isFolded = parameter.code === 'email' || parameter.code === 'phone'
      return leg.bind((value, into) => into.token(index, type, value, isFolded))
    }
    case 'reference':
      return leg.bind((value, into) => into.reference(planned, type, value))
    case 'string':
      return leg.bind((value, into) => into.string(index, type, value))
    case 'date':
      return leg.bind((value, into) => into.date(planned, type, value))
    case 'number':
    case 'quantity':
      return leg.bind((value, into) => into.quantity(index, type, value))
    case 'uri':
      return parameter.code === 'url' && parameter.expression === `${owner}.url`
        ? leg.bind((value, into) => into.canonicalUrl(index, value))
        : leg.bind((value, into) => into.uri(index, value))
    case 'composite':
      return planComposite(owner, parameter, index, leg)
    case 'special':
      return leg.bind((value, into) => into.position(index, value))
    default: {
      const never: never = parameter.type
      return never
    }
  }
}
