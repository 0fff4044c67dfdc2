/** GraphiQL with the rights of the person who is signed in. */
import 'graphiql/style.css'
import type { FetcherParams } from '@graphiql/toolkit'
import { Box, useComputedColorScheme } from '@mantine/core'
import { useDocumentTitle } from '@mantine/hooks'
import { GraphiQL } from 'graphiql'
import { medplum } from '../../session.ts'
import { texts } from '../../texts/texts.ts'

const FIRST = `{
  PatientList(_count: 5) {
    id
    name {
      family
      given
    }
  }
}
`

export function Page() {
  useDocumentTitle(`${texts.graphiql.title} – ${document.body.dataset.product}`)
  const scheme = useComputedColorScheme('light')
  return (
    <Box h="calc(100dvh - 88px)">
      <GraphiQL
        fetcher={({ query, operationName, variables }: FetcherParams) =>
          medplum.graphql(query, operationName, variables)
        }
        // Queries may name patients: they are forgotten with the tab.
        storage={sessionStorage}
        defaultQuery={FIRST}
        forcedTheme={scheme}
      />
    </Box>
  )
}
