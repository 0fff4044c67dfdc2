/**
 * `PlanDefinition/{id}/$apply`. https://hl7.org/fhir/R4/plandefinition-operation-apply.html
 * Conditions and dynamic values must be FHIRPath. Only ActivityDefinitions for ServiceRequest yield those; dynamic
 * values of actions and of other ActivityDefinitions have no effect.
 */
import { randomUUIDv7 } from 'node:crypto'
import { badRequest, notSupported, tooCostly, unknownDefinition } from '../../core/errors.ts'
import { typeElements } from '../../fhir/definitions.ts'
import {
  isObject,
  isResource,
  parseReference,
  type Resource,
  toObjects,
} from '../../fhir/resource.ts'
import { compileTenant, withinLimits } from '../../fhirpath/custom.ts'
import { loadEngine } from '../../fhirpath/engine.ts'
import { readInputs, toInteraction } from '../../request/parameters.ts'
import { absoluteUrl, textReply, versionHeaders } from '../../request/reply.ts'
import type { Operation, OperationCall } from '../../request/request.ts'
import { findCanonical } from '../../rest/criteria.ts'
import { createTogether } from '../../rest/write.ts'
import { parseVersion } from '../../store/rows/rows.ts'

const MOST_ACTIONS = 100
const MOST_LEVELS = 5

const NAMED = {
  encounter: 'Encounter',
  practitioner: 'Practitioner',
  organization: 'Organization',
} as const

/** Errors: 400, 403, 404; nothing is stored then. */
export const apply: Operation = {
  name: 'apply',
  on: [{ type: 'PlanDefinition', level: 'instance' }],
  standard: 'type',
  methods: ['POST'],
  inputs: {
    subject: 'reference!*: Patient/id',
    encounter: 'reference: Encounter/id',
    practitioner: 'reference: Practitioner/id',
    organization: 'reference: Organization/id',
  },
  text: {
    summary: 'Apply a plan to a patient',
    description: 'Stores a CarePlan, its RequestGroup, Tasks and requests.',
    answer: 'CarePlan',
  },
  async run(call) {
    const { services, principal, id = '' } = call
    const inputs = readInputs(call)
    const [subject, second] = inputs.texts('subject')
    if (subject === undefined || second !== undefined) {
      throw badRequest('$apply needs one subject', 'subject')
    }
    const patient = await readNamed(call, subject, 'subject', 'Patient')
    const variables: Record<string, Resource> = { subject: patient, patient }
    for (const [name, type] of Object.entries(NAMED)) {
      const text = inputs.text(name)
      if (text !== undefined) variables[name] = await readNamed(call, text, name, type)
    }
    const plan = parseVersion(await services.repository.read(principal, 'PlanDefinition', id))
    if (plan.status === 'retired') throw badRequest('The PlanDefinition is retired')
    const reference = (name: string) => {
      const text = inputs.text(name)
      return text === undefined ? {} : { reference: text }
    }
    const [encounter, practitioner, organization] = [
      'encounter',
      'practitioner',
      'organization',
    ].map(reference)
    const context: Context = {
      call,
      plan,
      patient,
      variables,
      made: [],
      about: { subject: { reference: subject }, encounter },
      practitioner,
      who: practitioner?.reference === undefined ? organization : practitioner,
    }
    await loadEngine()
    const all = await madeBy(context)
    const stored = (await createTogether(toInteraction(call), all)).at(-1)?.version
    if (stored === undefined) throw new Error('A CarePlan is always made')
    const location = `CarePlan/${stored.id}/_history/${stored.ver}`
    const headers = { ...versionHeaders(stored), Location: absoluteUrl(services, location) }
    return textReply(200, stored.content ?? '', headers)
  },
}

async function madeBy(context: Context): Promise<readonly Resource[]> {
  const { plan, about, practitioner, who: author, made } = context
  const actions = await applyActions(context, plan.action, 1)
  const shared = { instantiatesCanonical: [canonicalOfPlan(plan)], ...given(about) }
  const group: Resource = {
    resourceType: 'RequestGroup',
    id: randomUUIDv7(),
    status: 'active',
    intent: 'proposal',
    ...shared,
    // An Organization may not be the author: https://hl7.org/fhir/R4/requestgroup-definitions.html#RequestGroup.author
    ...given({ author: practitioner, action: actions.length === 0 ? undefined : actions }),
  }
  const carePlan: Resource = {
    resourceType: 'CarePlan',
    id: randomUUIDv7(),
    status: 'active',
    intent: 'plan',
    ...given({ title: plan.title, description: plan.description }),
    ...shared,
    ...given({ author }),
    activity: [{ reference: { reference: `RequestGroup/${group.id}` } }],
  }
  return [...made, group, carePlan]
}

async function readNamed(
  { services, principal }: OperationCall,
  text: string,
  name: string,
  type: string,
): Promise<Resource> {
  const target = parseReference(text)
  if (target?.type !== type) throw badRequest(`"${name}" must be ${type}/id`, name)
  return parseVersion(await services.repository.read(principal, target.type, target.id))
}

function canonicalOfPlan({ url, version, id }: Resource): string {
  if (typeof url !== 'string') return `PlanDefinition/${id}`
  return typeof version === 'string' ? `${url}|${version}` : url
}

interface Context {
  readonly call: OperationCall
  readonly plan: Resource
  readonly patient: Resource
  /** By name, for expressions. */
  readonly variables: Readonly<Record<string, Resource>>
  readonly made: Resource[]
  readonly about: Readonly<Record<string, unknown>>
  readonly practitioner: object | undefined
  /** The practitioner, otherwise the organization. */
  readonly who: object | undefined
}

function given(members: Readonly<Record<string, unknown>>): Record<string, unknown> {
  const all = Object.entries(members).filter(
    ([, value]) => value !== undefined && !(isObject(value) && Object.keys(value).length === 0),
  )
  return Object.fromEntries(all)
}

async function applyActions(context: Context, actions: unknown, level: number): Promise<object[]> {
  const list = toObjects(actions)
  if (level > MOST_LEVELS && list.length > 0) throw tooCostly('The actions are nested too deep')
  const shown: object[] = []
  for (const action of list) {
    if (!isApplicable(context, action)) continue
    if (context.made.length > MOST_ACTIONS) throw tooCostly('The plan has too many actions')
    const { title, description, textEquivalent, timingTiming } = action
    shown.push({
      ...given({ title, description, textEquivalent, timingTiming }),
      ...(await actionContent(context, action, level)),
    })
  }
  return shown
}

/** Either parts or a resource: https://hl7.org/fhir/R4/requestgroup.html#rqg-1 */
async function actionContent(
  context: Context,
  action: Readonly<Record<string, unknown>>,
  level: number,
): Promise<object> {
  const inner = await applyActions(context, action.action, level + 1)
  if (inner.length > 0) return { action: inner }
  const task = await buildTask(context, action)
  context.made.push(task)
  return { resource: { reference: `Task/${task.id}` } }
}

/** Errors: 400 for a condition that cannot be evaluated. */
function isApplicable(context: Context, { condition }: Readonly<Record<string, unknown>>): boolean {
  return toObjects(condition).every(({ kind, expression }) => {
    if (kind !== 'applicability') return true
    return evaluate(context, expression, 'The condition of an action')[0] === true
  })
}

/** Errors: 400 for another language, or an expression that cannot be evaluated. */
function evaluate({ patient, variables }: Context, expression: unknown, name: string): unknown[] {
  const { language, expression: text } = isObject(expression) ? expression : {}
  if (language !== 'text/fhirpath' || typeof text !== 'string') {
    throw notSupported(`${name} must be of text/fhirpath`)
  }
  const path = compileTenant(text)
  return withinLimits(() => path(patient, variables))
}

/** Returns the members that the dynamic values set; one without a result sets nothing. Errors: 400. */
function dynamicMembers(context: Context, { dynamicValue }: Resource): Record<string, unknown> {
  const members: Record<string, unknown> = {}
  for (const [i, { path, expression }] of toObjects(dynamicValue).entries()) {
    const place = `ActivityDefinition.dynamicValue[${i}]`
    if (typeof path !== 'string' || !/^[a-z]\w*$/i.test(path)) {
      throw notSupported(
        `${place}.path must name an element of the ServiceRequest`,
        `${place}.path`,
      )
    }
    const values = evaluate(context, expression, `${place}.expression`)
    const isList = typeElements('ServiceRequest').some(
      (element) => element.path === path && element.max === '*',
    )
    if (values.length > 0) members[path] = isList ? values : values[0]
  }
  return members
}

async function buildTask(
  context: Context,
  action: Readonly<Record<string, unknown>>,
): Promise<Resource> {
  const { about, who } = context
  const { title, description, definitionCanonical } = action
  const defined =
    typeof definitionCanonical === 'string'
      ? await definitionMembers(context, definitionCanonical)
      : {}
  return {
    resourceType: 'Task',
    id: randomUUIDv7(),
    status: 'requested',
    intent: 'order',
    ...given({
      description: title ?? description,
      for: about.subject,
      encounter: about.encounter,
      requester: who,
    }),
    authoredOn: new Date().toISOString(),
    ...defined,
  }
}

function contained(plan: Resource, canonical: string): Resource | undefined {
  const all = Array.isArray(plan.contained) ? plan.contained.filter(isResource) : []
  return all.find((one) => one.resourceType === 'ActivityDefinition' && `#${one.id}` === canonical)
}

/** Returns the Task members from a definition. Errors: 400 for a definition the caller cannot read. */
async function definitionMembers(
  context: Context,
  canonical: string,
): Promise<Record<string, unknown>> {
  const { call, plan, made, about, who } = context
  const isInside = canonical.startsWith('#')
  const questionnaire = isInside ? undefined : await findCanonical(call, 'Questionnaire', canonical)
  if (questionnaire !== undefined) {
    const valueReference = { reference: `Questionnaire/${questionnaire.id}` }
    return { input: [{ type: { text: 'Questionnaire' }, valueReference }] }
  }
  const activity =
    contained(plan, canonical) ?? (await findCanonical(call, 'ActivityDefinition', canonical))
  if (activity === undefined) throw unknownDefinition(`${canonical.slice(0, 200)} is not known`)
  if (activity.kind !== 'ServiceRequest') return {}
  const { code, bodySite, priority, doNotPerform } = activity
  const id = randomUUIDv7()
  const request: Resource = {
    status: 'draft',
    intent: 'order',
    ...given({
      instantiatesCanonical: [isInside ? canonicalOfPlan(plan) + canonical : canonical],
      ...about,
      code,
      bodySite,
      priority,
      doNotPerform,
      requester: who,
    }),
    authoredOn: new Date().toISOString(),
    ...dynamicMembers(context, activity),
    resourceType: 'ServiceRequest',
    id,
  }
  made.push(request)
  return { focus: { reference: `ServiceRequest/${id}` } }
}
