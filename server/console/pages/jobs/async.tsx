/** An asynchronous job: request, state and result; active jobs can be cancelled. */
import { Code } from '@mantine/core'
import { useParams } from 'wouter'
import { useGet } from '../../client/api.ts'
import { medplum } from '../../client/session.ts'
import { Action } from '../../parts/action.tsx'
import { Loaded } from '../../parts/loaded.tsx'
import { Outcome } from '../../parts/outcome.tsx'
import { Page } from '../../parts/page.tsx'
import { texts } from '../../texts/texts.ts'
import { type Job, stripBaseUrl } from './list.tsx'

const words = texts.jobs.async

export function AsyncPage() {
  const { id } = useParams<{ id: string }>()
  const job = useGet<Job>(`fhir/R4/AsyncJob/${id}`, { every: 2000 })
  const isGoing = ['accepted', 'active', 'running'].includes(job.data?.status ?? '')
  const cancel = () => medplum.post(`fhir/R4/AsyncJob/${id}/$cancel`, {})
  const action = isGoing && (
    <Action send={cancel} done={words.cancelled}>
      {words.cancel}
    </Action>
  )
  return (
    <Loaded query={job}>
      {(data) => (
        <Page title={words.title} hint={stripBaseUrl(data.request ?? '')} actions={action}>
          <div>
            <Outcome status={data.status ?? ''} />
          </div>
          <Code block tabIndex={0}>
            {JSON.stringify(data, null, 2)}
          </Code>
        </Page>
      )}
    </Loaded>
  )
}
