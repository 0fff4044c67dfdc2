/** Carries out an operation of a prepared document: the answer as text, and the errors of its fields. */
import type { GraphQLError, OperationDefinitionNode } from 'graphql'
import { tooLarge } from '../../errors.ts'
import { parseJson } from '../../fhir/json.ts'
import type { Resource } from '../../fhir/resource.ts'
import { type Prepared, planOf } from '../document/document.ts'
import { withDirectives } from './directives.ts'
import { write } from './mutations.ts'
import { Out } from './out.ts'
import type { Plan } from './plan.ts'
import type { Run } from './run.ts'
import { writeField, writeObject, writeResource } from './write.ts'

/** Characters of an answer that the directives of FHIR may reshape, as that is done at once. */
const MAX_RESHAPED = 8_388_608

export interface Ready {
  readonly run: Run
  readonly prepared: Prepared
  readonly operation: OperationDefinitionNode
  /** The resource that the document is about. */
  readonly root: Resource | undefined
}

export interface Executed {
  /** JSON of the data. */
  readonly data: string
  readonly errors: readonly GraphQLError[]
}

/** Errors: 413, and the end of the request. */
export async function execute({ run, prepared, operation, root }: Ready): Promise<Executed> {
  const plan = planOf(prepared, operation, run.config.variables)
  const out = new Out()
  if (operation.operation === 'mutation') await mutate(run, out, plan)
  else writeObject(run, out, plan, { value: root, owner: root, path: undefined })
  await run.settle()
  const data = out.toString()
  const { errors } = run
  if (!prepared.hasDirectives) return { data, errors }
  if (data.length > MAX_RESHAPED) throw tooLarge()
  const shaped = await withDirectives(parseJson(data), prepared, operation, run)
  return { data: JSON.stringify(shaped), errors }
}

/** One field after the other, each with all that is selected of its resource. */
async function mutate(run: Run, out: Out, { steps }: Plan): Promise<void> {
  for (const step of steps) {
    out.text += step.open
    const { source } = step
    if (source?.kind !== 'write') {
      writeField(run, out, step, { value: undefined, owner: undefined, path: undefined })
      continue
    }
    const hole = out.hole()
    const path = { parent: undefined, key: step.key }
    try {
      const { given } = run.argsOf(step)
      const resource = await write(run, source.type, source.action, given)
      writeResource(run, hole, { step, owner: undefined, path }, resource)
      await run.settle()
    } catch (error) {
      run.fail(error, { out: hole, step, path })
    }
  }
  out.text += '}'
}
